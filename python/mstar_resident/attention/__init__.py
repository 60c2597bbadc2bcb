"""Attention over paged KV pools. Each backend's file says whether its decode needs a host plan."""
