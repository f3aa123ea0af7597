//! Finding `log_line_prefix` from the lines of a log.
//!
//! Candidates are tried, not deduced: what administrators write is a product of a few habits (the
//! time and process first, then a counter, then who), and a candidate that matches every record of a
//! sample with plausible names is right for all that matters.

use super::{Field, Names, Prefix};
use crate::record::Label;

/// The candidate that matches most of `lines`, or `None` if none matches any.
///
/// Among equals the one that stands earlier in [`candidates`] wins: simpler ones come first.
pub(crate) fn guess<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Prefix> {
    let lines: Vec<_> = lines.filter(|line| may_have_label(line)).collect();
    let best = |candidates: Vec<(usize, Prefix)>| {
        let most = candidates.iter().map(|(score, _)| *score).max().filter(|most| *most > 0)?;
        Some(
            candidates
                .into_iter()
                .filter(move |(score, _)| *score == most)
                .map(|(_, prefix)| prefix),
        )
    };
    let score = |prefix: Prefix, lines: &mut dyn Iterator<Item = &&[u8]>| {
        (lines.filter(|line| fits(&prefix, line)).count(), prefix)
    };
    // Thousands of candidates on a few lines spread over the sample, then the few best on all lines.
    let stride = lines.len().div_ceil(FIRST_PASS_LINES).max(1);
    let compiled = candidates().filter_map(|source| Prefix::compile(&source).ok());
    let first = compiled.map(|prefix| score(prefix, &mut lines.iter().step_by(stride))).collect();
    let second = best(first)?.map(|prefix| score(prefix, &mut lines.iter())).collect();
    best(second)?.next()
}

/// Lines that all candidates are tried on.
const FIRST_PASS_LINES: usize = 40;

fn may_have_label(line: &[u8]) -> bool {
    memchr::memmem::find(&line[..line.len().min(1024)], b":  ").is_some()
}

/// Whether a line matches with names and addresses such as there are, and, where the line itself
/// tells user and database, with just those.
fn fits(prefix: &Prefix, line: &[u8]) -> bool {
    let Some(found) = prefix.matches(line, Names::default()) else { return false };
    let plausible = [Field::User, Field::Database].into_iter().all(|field| {
        let name = found.field(line, field);
        name == b"[unknown]" || !name.iter().any(|byte| b" []()|,=:/".contains(byte))
    });
    let host = found.field(line, Field::Host);
    plausible
        && !host.contains(&b'(')
        && found.label != Label::NONE
        && agrees_with_authorized(&found, line)
}

fn agrees_with_authorized(found: &super::Match, line: &[u8]) -> bool {
    let message = line.get(found.text..).unwrap_or_default();
    let Some(rest) = message.strip_prefix(b"connection authorized: user=") else { return true };
    let agrees = |name: &[u8], text: &[u8]| name.is_empty() || text.starts_with(name);
    let database =
        memchr::memmem::find(rest, b" database=").map_or(&b""[..], |at| &rest[at + 10..]);
    agrees(found.field(line, Field::User), rest)
        && agrees(found.field(line, Field::Database), database)
}

/// All prefixes that are tried, most common and simplest first.
fn candidates() -> impl Iterator<Item = String> {
    let grid = WHO.iter().flat_map(|who| {
        COUNTERS
            .iter()
            .flat_map(move |counter| HEADS.iter().map(move |head| format!("{head}{counter}{who}")))
    });
    WHOLE.iter().map(|whole| (*whole).to_owned()).chain(grid)
}

/// Prefixes that do not fit the grid: distributions, cloud providers, manuals.
const WHOLE: &[&str] = &[
    "%m [%p] ",
    "%m [%p] %q%u@%d ",
    "%m|%u|%d|%c|",
    "%m|%u|%d|%c| ",
    "%t:%r:%u@%d:[%p]:",
    "%m:%r:%u@%d:[%p]:",
    "%m:%r:%u@%d:[%p]:%l:%e:%s:%v:%x:%c:%q%a:",
    "%t:%r:%u@%d:[%p]:%l:%e:%s:%v:%x:%c:%q%a:",
    "%t-%c-",
    "%m-%c-",
    "%m-%p-%c-",
    "< %m > ",
    "< %m %u %d > ",
    "<%m>",
    "%t:%u:%d:",
    "%m %u %d [%p]: ",
    "%m %d %u [%p] ",
    "%m|%p|%u|%d|%a|",
    "%m|%u|%d|%p|",
    "%m|%u|%d|%r|%p|",
    "%m;%u;%d;%p;",
    "%m %c ",
    "%m %c %u %d ",
    "%m [%p] [%c] ",
    "%m %p %c ",
    "%n %-12u %8p %l %e %i %s %v %x %r %h %b %P %Q %% |%c| ",
];

const HEADS: &[&str] = &[
    "%m [%p] ",
    "%t [%p] ",
    "%t [%p]: ",
    "%m [%p]: ",
    "%n [%p] ",
    "%m %p ",
    "%t %p ",
    "%m [%c] ",
    "%t [%c]: ",
    "%m %c ",
    "[%m] [%p] ",
    "[%t] [%p] ",
    "%m ",
    "%t ",
    "[%m] ",
    "[%t] ",
];

const COUNTERS: &[&str] =
    &["", "[%l-1] ", "[%l] ", "%l ", "[%c-%l] ", "[%e] ", "[%l-1] [%x] ", "%x "];

const WHO: &[&str] = &[
    "",
    "%q%u@%d ",
    "%q[%u@%d] ",
    "%q%u@%d/%a ",
    "%q%u@%d %r ",
    "%q%u@%d %h ",
    "%q%r %u@%d ",
    "%q%h %u@%d ",
    "%quser=%u,db=%d ",
    "%quser=%u,db=%d,app=%a,client=%h ",
    "%quser=%u,db=%d,app=%a,client=%r ",
    "%quser=%u,db=%d,client=%h ",
    "%quser=%u,db=%d,client=%r ",
    "%quser=%u,db=%d,client=%h,app=%a ",
    "%quser=%u,db=%d,app=%a ",
    "%quser=%u,database=%d,host=%r ",
    "%quser=%u,database=%d,host=%h ",
    "%quser=%u database=%d host=%r ",
    "%quser=%u database=%d host=%h ",
    "%quser=%u db=%d ",
    "%quser=%u db=%d app=%a client=%r ",
    "%quser=%u db=%d app=%a client=%h ",
    "%qdb=%d,user=%u ",
    "%qdb=%d,user=%u,app=%a,client=%r ",
    "%qdb=%d,user=%u,app=%a,client=%h ",
    "%qapp=%a,user=%u,db=%d,client=%h ",
    "%q%u %d ",
    "%q%u %d %r ",
    "%q%u,%d ",
    "%q%u|%d|",
    "%q%u@%d %a ",
    "%q%a %u@%d ",
];

#[test]
fn every_candidate_compiles_and_is_there_once() {
    let mut seen = std::collections::HashSet::new();
    for source in candidates() {
        assert!(Prefix::compile(&source).is_ok(), "{source}");
        seen.insert(source);
    }
    assert!(seen.len() > 3000);
}
