//! The advice as text.

use std::fmt::Write as _;

use howdah_advise::{ClientAdvice, LeftState, PoolAdvice, StateKind};

use super::{consequence, limits, reason, settings::settings};
use crate::text::{counted, one_line};

/// Maximum width of names in tables, and of lines with statements.
const NAME_WIDTH: usize = 20;
const LINE_WIDTH: usize = 96;

/// Maximum number of names of objects in a line.
const NAMES_SHOWN: usize = 8;

/// Renders the advice: up to `limit` groups of clients with their state, the pools, functions, the
/// limits of the advice, and settings.
pub fn table(advice: &PoolAdvice, limit: usize) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail, here and below.
    if let Some(first) = advice.facts.first {
        let _ = writeln!(out, "time      {first} to {}", advice.facts.last_end);
    }
    let _ = writeln!(out, "events    {}", advice.facts.events);
    if advice.clients.is_empty() {
        let _ = writeln!(out, "\nThe capture has no sessions.");
        return out;
    }
    let _ = writeln!(out, "\nCLIENTS, those with the longest time in transactions first");
    write_clients(&mut out, &advice.clients, limit);
    write_states(&mut out, &advice.clients, limit);
    let _ = writeln!(out, "\nPOOLS");
    write_pools(&mut out, advice, limit);
    write_functions(&mut out, advice, limit);
    let _ = writeln!(out, "\nLIMITS OF THIS ADVICE");
    for sentence in limits(&advice.facts) {
        write_wrapped(&mut out, "  ", &sentence);
    }
    let _ = write!(out, "\nSETTINGS for howdah.toml\n\n{}", settings(advice));
    out
}

fn write_clients(out: &mut String, clients: &[ClientAdvice], limit: usize) {
    let widths = [
        width("DATABASE", clients.iter().map(|it| &*it.database), limit),
        width("USER", clients.iter().map(|it| &*it.user), limit),
        width("APPLICATION", clients.iter().map(|it| &*it.application), limit),
    ];
    let [database, user, application] = widths;
    let _ = writeln!(
        out,
        "{:database$} {:user$} {:application$} {:>11} {:>10} {:>12} {:>11} {:>14} {:>7}  MODE",
        "DATABASE",
        "USER",
        "APPLICATION",
        "SESSIONS",
        "STATEMENTS",
        "TRANSACTIONS",
        "AT ONCE",
        "IN TRANSACTION",
        "PINNED"
    );
    for it in clients.iter().take(limit) {
        let open = it.open_transactions;
        let _ = writeln!(
            out,
            "{:database$} {:user$} {:application$} {:>11} {:>10} {:>12} {:>11} {:>14} {:>7}  {}",
            name(&it.database),
            name(&it.user),
            name(&it.application),
            format!("{}/{}", it.sessions, it.sessions_max),
            it.statements,
            it.transactions,
            format!("{}/{}/{}", open.p50, open.p99, open.max),
            percent(it.transaction_share()),
            percent(it.pinned_share()),
            it.mode.as_str(),
        );
    }
    write_omitted(out, clients.len(), limit);
    let _ = writeln!(
        out,
        "SESSIONS: in all/open at once. AT ONCE: open transactions, p50/p99/max. Percentages are shares\n\
         of the sessions' time; PINNED is estimated for adaptive mode."
    );
}

/// Writes the state that transactions of each group leave, and why a mode suits it.
fn write_states(out: &mut String, clients: &[ClientAdvice], limit: usize) {
    let _ = writeln!(out, "\nSTATE THAT OUTLIVES ITS TRANSACTION");
    let mut has_any = false;
    for it in clients.iter().take(limit) {
        if it.states.is_empty() && it.sequence_reads.is_none() {
            continue;
        }
        has_any = true;
        let _ = writeln!(
            out,
            "{}, {}, {}: {} mode",
            name(&it.database),
            name(&it.user),
            name(&it.application),
            it.mode.as_str()
        );
        write_wrapped(out, "    ", reason(it));
        it.states.iter().for_each(|state| write_state(out, it, state));
        if let Some(reads) = &it.sequence_reads {
            let _ = writeln!(
                out,
                "  currval, lastval: {} in {}, in a later transaction than nextval",
                counted(reads.count, "call"),
                counted(reads.sessions, "session")
            );
            let _ = writeln!(out, "    {}", one_line(&reads.example, LINE_WIDTH - 4));
        }
    }
    if !has_any {
        let _ = writeln!(out, "none");
    }
}

fn write_state(out: &mut String, clients: &ClientAdvice, state: &LeftState) {
    let _ = writeln!(
        out,
        "  {}: {} in {}, {} of session time",
        state.kind,
        times(state.count),
        counted(state.sessions, "session"),
        percent(clients.share(state.time)),
    );
    let _ = writeln!(out, "    {}", consequence(state));
    if !state.names.is_empty() && state.kind != StateKind::AdvisoryLock {
        let shown = state.names.iter().take(NAMES_SHOWN);
        let mut names: Vec<_> = shown.map(|(name, _)| one_line(name, NAME_WIDTH * 2)).collect();
        match state.names.len().saturating_sub(NAMES_SHOWN) {
            0 => {}
            more => names.push(format!("{more} more")),
        }
        write_wrapped(out, "    ", &names.join(", "));
    }
    if let Some(example) = &state.example {
        let _ = writeln!(out, "    {}", one_line(example, LINE_WIDTH - 4));
    }
}

fn write_pools(out: &mut String, advice: &PoolAdvice, limit: usize) {
    let pools = &advice.pools;
    let database = width("DATABASE", pools.iter().map(|it| &*it.database), limit);
    let user = width("USER", pools.iter().map(|it| &*it.user), limit);
    let _ = writeln!(
        out,
        "{:database$} {:user$} {:<11} {:>9} {:>12} {:>23} {:>7}",
        "DATABASE", "USER", "MODE", "POOL-SIZE", "RESERVE-SIZE", "SERVERS IN SESSION MODE", "SAVED"
    );
    for it in pools.iter().take(limit) {
        let _ = writeln!(
            out,
            "{:database$} {:user$} {:<11} {:>9} {:>12} {:>23} {:>7}",
            name(&it.database),
            name(&it.user),
            it.mode.as_str(),
            it.size,
            it.reserve,
            it.session_mode_size,
            saved(u64::from(it.size) + u64::from(it.reserve), it.session_mode_size.into()),
        );
    }
    write_omitted(out, pools.len(), limit);
    let (servers, in_session_mode) = advice.servers();
    let _ = writeln!(
        out,
        "all pools: {servers} server connections, instead of {in_session_mode} in session mode"
    );
    let _ = writeln!(
        out,
        "With POOL-SIZE connections, 99 % of the transactions get one at once; with the reserve,\n\
         all of them. More clients than in the capture need more."
    );
}

fn write_functions(out: &mut String, advice: &PoolAdvice, limit: usize) {
    if advice.functions.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nFUNCTIONS THAT ARE NOT POSTGRESQL'S OWN");
    let _ = writeln!(out, "{:>10} {:>10}  FUNCTION", "CALLS", "SESSIONS");
    for it in advice.functions.iter().take(limit) {
        let name = if &*it.name == "do" { "(DO blocks)" } else { &it.name };
        let name = one_line(name, LINE_WIDTH - 24);
        let _ = writeln!(out, "{:>10} {:>10}  {name}", it.calls, it.sessions);
    }
    write_omitted(out, advice.functions.len(), limit);
    write_wrapped(
        out,
        "",
        "Each pins its client in adaptive mode until DISCARD ALL, unless the server knows it as \
         stable or immutable, which a capture does not show. List those that leave no state in \
         adaptive.stateless-functions; --stateless-function NAME shows the effect.",
    );
}

/// Returns the share of the servers of session mode that are not needed.
fn saved(servers: u64, in_session_mode: u64) -> String {
    match in_session_mode {
        0 => "n/a".to_owned(),
        all => percent(all.saturating_sub(servers) as f64 / all as f64),
    }
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn percent(share: f64) -> String {
    match share * 100.0 {
        share if share > 0.0 && share < 0.1 => "<0.1 %".to_owned(),
        share => format!("{share:.1} %"),
    }
}

fn name(name: &str) -> String {
    match name {
        "" => "(unknown)".to_owned(),
        name => one_line(name, NAME_WIDTH),
    }
}

fn width<'a>(head: &str, names: impl Iterator<Item = &'a str>, limit: usize) -> usize {
    let widths = names.take(limit).map(|it| name(it).chars().count());
    widths.max().unwrap_or_default().max(head.len())
}

fn write_omitted(out: &mut String, rows: usize, limit: usize) {
    let more = rows.saturating_sub(limit);
    if more > 0 {
        let _ = writeln!(out, "{more} more: --limit 0 shows all");
    }
}

/// Writes a sentence in lines of limited width.
fn write_wrapped(out: &mut String, indent: &str, sentence: &str) {
    let mut line = indent.to_owned();
    for token in sentence.split(' ') {
        if line.len() > indent.len() {
            if line.chars().count() + 1 + token.chars().count() > LINE_WIDTH {
                let _ = writeln!(out, "{line}");
                line = indent.to_owned();
            } else {
                line.push(' ');
            }
        }
        line.push_str(token);
    }
    let _ = writeln!(out, "{line}");
}
