//! Guesses `log_line_prefix` from the lines of a log.
//!
//! Most prefixes follow a few conventions (time and process first, then a counter, then the
//! session), so prefixes built from these are tried as candidates. A candidate that matches every
//! record of a sample with plausible names very likely assigns all important fields correctly. If
//! no candidate does, a prefix is [deduced](super::deduction).

use super::{
    CompiledPrefix, Confidence, PrefixField, SessionNames,
    deduction::{deduce_prefixes, label_at},
    shape,
};
use howdah_log_input::{LineLabel, stamp_len};
use std::cmp::Reverse;

/// Returns the prefix that matches the most lines; `None` if none matches any. This is one of the
/// [`candidates`], the most common one if several match equally many lines, or a deduced prefix if
/// that matches more. The result's [confidence](CompiledPrefix::confidence) shows whether some
/// records do not match.
pub(crate) fn guess_prefix<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<CompiledPrefix> {
    let lines: Vec<_> = lines.filter(|line| may_have_label(line)).collect();
    // Try thousands of candidates on a few lines spread over the sample, then the best few on all
    // lines.
    let stride = lines.len().div_ceil(FIRST_PASS_LINES).max(1);
    let few: Vec<_> = lines.iter().step_by(stride).copied().collect();
    let compiled = candidates().filter_map(|source| CompiledPrefix::compile(&source).ok());
    let mut finalists = best_matching(compiled, &few).1;
    finalists.truncate(FINALISTS_MAX);
    let (mut most, mut winners) = best_matching(finalists.into_iter(), &lines);
    if most < lines.len() {
        let compiled =
            deduce_prefixes(&lines).filter_map(|source| CompiledPrefix::compile(&source).ok());
        let (score, mut deduced) = best_matching(compiled, &lines);
        if score > most {
            // A prefix that takes a name for literal text, or ends before the names of sessions,
            // may match as many lines.
            deduced.sort_by_cached_key(|prefix| Reverse(named_lines(prefix, &lines)));
            (most, winners) = (score, deduced);
        }
    }
    let mut winners = winners.into_iter();
    let mut winner = winners.next()?;
    let rival = winners.find(|rival| reads_differently(&winner, rival, &lines));
    let misfits = lines.iter().filter(|line| is_misfit(&winner, line)).count();
    winner.confidence = Some(Confidence {
        lines: most as u64,
        lines_total: (most + misfits) as u64,
        rival: rival.map(|rival| rival.source),
    });
    Some(winner)
}

/// Whether a line looks like a record but does not match the prefix, or only with implausible names
/// or addresses.
pub(crate) fn is_misfit(prefix: &CompiledPrefix, line: &[u8]) -> bool {
    !fits(prefix, line) && is_record_like(line)
}

/// Whether lines have labels but no times before them.
pub(crate) fn are_without_times<'a>(mut lines: impl Iterator<Item = &'a [u8]> + Clone) -> bool {
    lines.clone().any(|line| label_at(line).is_some()) && !lines.any(is_record_like)
}

/// Whether a line contains a time and a label after it. The rest of a record that was cut by
/// rotation has no time, and output of other programs has no label.
fn is_record_like(line: &[u8]) -> bool {
    let Some(label) = label_at(line) else { return false };
    let head = &line[..label];
    let is_epoch = |at: usize| {
        let is_start = at == 0 || !head[at - 1].is_ascii_digit();
        is_start && shape::lengths(PrefixField::Epoch, &head[at..])[0] == Some(EPOCH_BYTES)
    };
    let is_stamp =
        |at: usize| stamp_len(&head[at..], true).or(stamp_len(&head[at..], false)).is_some();
    (0..label).any(|at| is_stamp(at) || is_epoch(at))
}

/// Length of `%n`, such as `1795178599.577`.
const EPOCH_BYTES: usize = 14;

/// Returns the prefixes that match the most lines, after the number of these lines. If no prefix
/// matches any line, none is returned.
fn best_matching(
    prefixes: impl Iterator<Item = CompiledPrefix>,
    lines: &[&[u8]],
) -> (usize, Vec<CompiledPrefix>) {
    let mut winners = (1, Vec::new());
    for prefix in prefixes {
        let score = lines.iter().filter(|line| fits(&prefix, line)).count();
        if score > winners.0 {
            winners = (score, Vec::new());
        }
        if score == winners.0 {
            winners.1.push(prefix);
        }
    }
    winners
}

/// Returns the number of lines in which a prefix finds a user.
fn named_lines(prefix: &CompiledPrefix, lines: &[&[u8]]) -> usize {
    let is_named = |line: &&&[u8]| {
        let found = prefix.matches(line, SessionNames::default());
        found.is_some_and(|found| !found.span(PrefixField::User).is_empty())
    };
    lines.iter().filter(is_named).count()
}

/// Whether two prefixes that match the same lines find different sessions in them.
fn reads_differently(one: &CompiledPrefix, other: &CompiledPrefix, lines: &[&[u8]]) -> bool {
    const SESSION_PARTS: [PrefixField; 4] =
        [PrefixField::User, PrefixField::Database, PrefixField::Pid, PrefixField::SessionId];
    lines.iter().any(|line| {
        let found = [one, other].map(|prefix| prefix.matches(line, SessionNames::default()));
        let [Some(one), Some(other)] = found else { return false };
        SESSION_PARTS.into_iter().any(|field| {
            let (one, other) = (one.field(line, field), other.field(line, field));
            !one.is_empty() && !other.is_empty() && one != other
        })
    })
}

/// Maximum number of candidates in the second pass, on all lines.
const FINALISTS_MAX: usize = 64;

/// Number of lines in the first pass, which tries all candidates.
const FIRST_PASS_LINES: usize = 40;

fn may_have_label(line: &[u8]) -> bool {
    memchr::memmem::find(&line[..line.len().min(1024)], b":  ").is_some()
}

/// Whether a line matches with plausible names and addresses and, if the line itself names user and
/// database, with these names.
fn fits(prefix: &CompiledPrefix, line: &[u8]) -> bool {
    let Some(found) = prefix.matches(line, SessionNames::default()) else { return false };
    let plausible = [PrefixField::User, PrefixField::Database].into_iter().all(|field| {
        let name = found.field(line, field);
        name == b"[unknown]" || !name.iter().any(|byte| b" []()|,=:/".contains(byte))
    });
    plausible
        && is_remote(found.field(line, PrefixField::Remote))
        && is_host(found.field(line, PrefixField::Host))
        && is_host(found.field(line, PrefixField::LocalAddress))
        && found.label != LineLabel::NONE
        && agrees_with_authorized(&found, line)
}

/// Whether a text is a valid `%r`: a host and its port, `[local]`, or nothing.
fn is_remote(text: &[u8]) -> bool {
    let host = text.strip_suffix(b")").and_then(|text| {
        let open = memchr::memrchr(b'(', text)?;
        let (host, port) = (&text[..open], &text[open + 1..]);
        (!host.is_empty() && port.iter().all(u8::is_ascii_digit)).then_some(host)
    });
    host.map_or(matches!(text, b"" | b"[local]"), is_host)
}

/// Whether a text is a valid `%h` or `%L`: a name, an address, `[local]`, `[none]`, or nothing.
fn is_host(text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b".:_-%".contains(byte);
    matches!(text, b"" | b"[local]" | b"[none]")
        || text.iter().all(is_part) && !text.iter().all(u8::is_ascii_digit)
}

fn agrees_with_authorized(found: &super::Match, line: &[u8]) -> bool {
    let message = line.get(found.text..).unwrap_or_default();
    let Some(rest) = message.strip_prefix(b"connection authorized: user=") else { return true };
    let agrees = |name: &[u8], text: &[u8]| name.is_empty() || text.starts_with(name);
    let database =
        memchr::memmem::find(rest, b" database=").map_or(&b""[..], |at| &rest[at + 10..]);
    agrees(found.field(line, PrefixField::User), rest)
        && agrees(found.field(line, PrefixField::Database), database)
}

/// Returns all prefixes to try, the most common and simplest first.
fn candidates() -> impl Iterator<Item = String> {
    let grid = SESSION_PARTS.iter().flat_map(|session_part| {
        PREFIX_COUNTERS.iter().flat_map(move |counter| {
            PREFIX_HEADS.iter().map(move |head| format!("{head}{counter}{session_part}"))
        })
    });
    COMMON_PREFIXES.iter().map(|whole| (*whole).to_owned()).chain(grid)
}

/// Prefixes of distributions, cloud providers and manuals, which are tried before combinations of
/// [`PREFIX_HEADS`], [`PREFIX_COUNTERS`] and [`SESSION_PARTS`].
const COMMON_PREFIXES: &[&str] = &[
    "%m [%p] ",
    "%m [%p] %q%u@%d ",
    "%m|%u|%d|%c|",
    "%m|%u|%d|%c| ",
    // The advice of `capture doctor`, with and without the escapes that PostgreSQL 14 added.
    "%m|%u|%d|%a|%c|%v|%x|%e|%Q|",
    "%m|%u|%d|%a|%c|%v|%x|%e|",
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
    "%m %u %d [%p] ",
    "%m|%p|%u|%d|%a|",
    "%m|%u|%d|%p|",
    "%m|%u|%d|%r|%p|",
    "%m;%u;%d;%p;",
    "%m %c ",
    "%m %c %u %d ",
    "%m [%p] [%c] ",
    "%m %p %c ",
    "%n %-12u %8p %l %e %i %s %v %x %r %h %b %P %Q %% |%c| ",
    // openSUSE, Spilo, Supabase, Aiven, Crunchy, EDB; pgBadger's for syslog after time and process.
    "%m %d %u [%p]",
    "%t [%p]: [%l-1] %c %x %d %u %a %h ",
    "%h %m [%p] %q%u@%d ",
    "%m [%p] %q[user=%u,db=%d,app=%a] ",
    "%t [%p]: [%l-1] user=%u,db=%d,app=%a,client=%h ",
    "%m [%p]: [%l-1] %quser=%u,db=%d,app=%a,client=%h ",
    "[%m] [%p] %u@%d %h %a ",
    "%m [%p]: [%l-1] db=%d,user=%u,host=%h ",
    "%m-%c-%u-%d-",
    // Heroku, whose lines may have only the code, after the time and process of syslog.
    "%m [%p] sql_error_code = %e ",
    "%m [%p]  sql_error_code = %e ",
    " sql_error_code = %e time_ms = \"%m\" pid=\"%p\" proc_start_time=\"%s\" session_id=\"%c\" vtid=\"%v\" tid=\"%x\" log_line=\"%l\" %qdatabase=\"%d\" connection_source=\"%r\" user=\"%u\" application_name=\"%a\" ",
    "sql_error_code = %e time_ms = \"%m\" pid=\"%p\" proc_start_time=\"%s\" session_id=\"%c\" vtid=\"%v\" tid=\"%x\" log_line=\"%l\" %qdatabase=\"%d\" connection_source=\"%r\" user=\"%u\" application_name=\"%a\" ",
    // With query ids; other such prefixes are deduced.
    "%m [%p] [queryid=%Q] %q%u@%d ",
    "%m [%p] qid=%Q %q%u@%d ",
    "%m [%p] %q[queryid=%Q] %u@%d ",
    "%m [%p] %qqid=%Q %u@%d ",
];

const PREFIX_HEADS: &[&str] = &[
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

const PREFIX_COUNTERS: &[&str] =
    &["", "[%l-1] ", "[%l] ", "%l ", "[%c-%l] ", "[%e] ", "[%l-1] [%x] ", "%x "];

const SESSION_PARTS: &[&str] = &[
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
fn every_candidate_compiles() {
    let mut seen = std::collections::HashSet::new();
    for source in candidates() {
        assert!(CompiledPrefix::compile(&source).is_ok(), "{source}");
        seen.insert(source);
    }
    assert!(seen.len() > 3000);
}
