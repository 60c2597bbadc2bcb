# Every target is the script of the same name under scripts/, which also runs without make.
TARGETS := demo test lint soak bench wheel gpu-test gpu-bench gpu-bench-tp gpu-soak setup model examples valgrind mutants fuzz loom
.PHONY: $(TARGETS)
$(TARGETS):
	@scripts/$@
