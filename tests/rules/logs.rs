//! An operation log holds every call, replays bit for bit, and a log that was changed does not.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use mstar_resident_core::{Journal, Op, PlanSeq, ReplayError, Replayed, replay};

use crate::plain;
use crate::support::machine::Machine;
use crate::support::operations::COUNT;
use crate::support::ram::{Log, make, record, shared};
use crate::support::random::Random;
use crate::support::shapes::Shape;

/// Calls that answer what the header says, or read what a flush left behind.
const NO_OPERATION: [&str; 5] = [
    "new",
    "layout",
    "max_batch",
    "largest_flush_bytes",
    "copies",
];

/// A history of every kind of call.
fn history(shape: &Shape, seed: u64) -> Vec<Op> {
    let mut machine = Machine::new(shape, &[0]);
    let mut random = Random::new(seed);
    for _ in 0..300 {
        machine.operate(random.below(COUNT), &mut random);
    }
    machine.node.history
}

fn lines(log: &str) -> Vec<String> {
    log.lines().map(str::to_owned).collect()
}

fn replayed(lines: &[String]) -> Result<Replayed, ReplayError> {
    replay(lines.join("\n").as_bytes())
}

#[test]
fn every_public_call_of_the_planner_is_an_operation() {
    let mut calls = Vec::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("rust/core/src")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let mut inside = false;
        for line in text.lines() {
            inside = line == "impl Planner {" || inside && line != "}";
            if let Some(rest) = line.strip_prefix("    pub fn ").filter(|_| inside) {
                calls.push(rest[..rest.find('(').unwrap()].to_owned());
            }
        }
    }
    assert!(calls.len() > 35, "{calls:?}");
    for call in calls {
        let parsed = serde_json::from_str::<Op>(&format!("{{\"{call}\":[]}}"));
        let known = !parsed.is_err_and(|error| error.to_string().contains("unknown variant"));
        let expected = !NO_OPERATION.contains(&call.as_str());
        assert_eq!(known, expected, "{call} is journaled");
    }
}

#[test]
fn a_log_of_any_history_replays_to_its_end() {
    for seed in 0..20 {
        let shape = Shape::mixed(3);
        let history = history(&shape, seed);
        let log = record(&shape, &history);
        let expected = Replayed {
            planners: 1,
            calls: history.len() as u64,
        };
        assert_eq!(replay(log.as_bytes()), Ok(expected));
    }
}

#[test]
fn two_planners_share_a_log() {
    let log = Log::default();
    let journal = Arc::new(Journal::new(Box::new(log.clone())));
    let shapes = [Shape::plain(1), Shape::with_context(2)];
    let planners = shapes.map(|shape| shared(&shape, Some(journal.clone())));
    for _ in 0..3 {
        for planner in &planners {
            make(planner, &Op::Open).unwrap();
        }
    }
    let replayed = replay(log.text().as_bytes()).unwrap();
    assert_eq!((replayed.planners, replayed.calls), (2, 6));
}

#[test]
fn a_digit_changed_in_any_outcome_is_found_at_that_operation() {
    let shape = Shape::mixed(2);
    let lines = lines(&record(&shape, &history(&shape, 7)));
    let mut changed = 0;
    for at in 2..lines.len() {
        let outcome = lines[at].find("\"outcome\"").unwrap();
        let digit = lines[at][outcome..].find(|c: char| c.is_ascii_digit());
        let Some(digit) = digit.map(|digit| outcome + digit) else {
            continue;
        };
        let mut bytes = lines[at].clone().into_bytes();
        bytes[digit] = if bytes[digit] == b'7' { b'8' } else { b'7' };
        let mut other = lines.clone();
        other[at] = String::from_utf8(bytes).unwrap();
        let error = replayed(&other).unwrap_err();
        assert!(
            matches!(error, ReplayError::Differs { operation, .. } if operation == at as u64 - 1),
            "line {}: {error}",
            at + 1
        );
        changed += 1;
    }
    assert!(changed > 50, "{changed} outcomes have a digit");
}

#[test]
fn a_call_that_is_left_out_or_changed_is_found() {
    let mut node = plain(2);
    let a = node.simple(5, 4, 3);
    node.step(&[a]);
    node.step(&[a]);
    let lines = lines(&record(&Shape::plain(2), &node.history));
    assert!(replayed(&lines).is_ok());
    for at in 2..lines.len() - 1 {
        let mut shorter = lines.clone();
        let left_out = shorter.remove(at);
        let quiet = left_out.contains("set_strict"); // it only checks more
        assert_eq!(replayed(&shorter).is_err(), !quiet, "without {left_out}");
    }
    let other = lines.join("\n").replace("\"pages\":[5,", "\"pages\":[9,");
    let error = replay(other.as_bytes()).unwrap_err();
    assert!(
        matches!(&error, ReplayError::Differs { call, .. } if call.starts_with("{\"flush\"")),
        "{error}"
    );
}

#[test]
fn a_file_that_is_no_log_of_this_version_is_refused_at_its_line() {
    let shape = Shape::plain(1);
    let log = record(&shape, &[Op::Open, Op::Release(0)]);
    let malformed = |log: &str| match replay(log.as_bytes()) {
        Err(ReplayError::Malformed { line, .. }) => line,
        other => panic!("{other:?} of {log}"),
    };
    assert_eq!(malformed(""), 1);
    assert_eq!(malformed("no log\n"), 1);
    assert_eq!(malformed(&log.replace("\"version\":1", "\"version\":2")), 1);
    let text = replay(log.replace("\"version\":1", "\"version\":2").as_bytes());
    assert!(
        text.unwrap_err()
            .to_string()
            .contains("got version 2, written by ")
    );
    assert_eq!(
        malformed(&log.replace("\"max_batch\":1", "\"max_batch\":0")),
        2
    );
    assert_eq!(
        malformed(&log.replace("\"page_size\":4", "\"page_size\":-4")),
        2
    );
    assert_eq!(malformed(&log.replace("\"planner\":0", "\"planner\":1")), 3);
    assert_eq!(malformed(&log.replace("\"open\"", "\"opened\"")), 3);
    assert_eq!(malformed(&log[..log.len() - 5]), 4);
    let twice = format!("{log}{log}");
    assert_eq!(malformed(&twice), 5);
    let wide = log.replace("\"max_batch\":1", "\"max_batch\":65536");
    let wide = wide.replace("\"max_seq_len\":64", "\"max_seq_len\":2000000000");
    assert_eq!(
        malformed(&wide.replace("\"pool_pages\":1000", "\"pool_pages\":2147483647")),
        2
    );
}

#[test]
fn a_stage_of_a_batch_that_names_a_request_twice_is_no_operation() {
    for batch in ["[0,0]", "[]", "[-1]"] {
        let op = format!("{{\"stage\":{{\"batch\":{batch},\"lease\":0}}}}");
        assert!(serde_json::from_str::<Op>(&op).is_err(), "{op}");
    }
    let op = Op::DropStaged(PlanSeq::from_raw(7));
    assert_eq!(serde_json::to_string(&op).unwrap(), "{\"drop_staged\":7}");
}
