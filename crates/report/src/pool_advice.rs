//! Renders advice on pool modes and sizes: tables for terminals, a document for programs, and
//! settings to copy.

mod document;
mod settings;
mod text;

pub use document::{PoolAdviceDocument, document};
pub use text::table;

use howdah_advise::{CaptureFacts, ClientAdvice, LeftState, ModeReason, StateKind};

use crate::text::counted;

/// Returns the limits of the advice, one sentence each: what this capture does not show, then what
/// no capture shows.
fn limits(facts: &CaptureFacts) -> Vec<String> {
    let mut limits = Vec::new();
    if facts.logged_executions > 0 {
        limits.push(
            "The events are from a log. It shows neither state that a session had before, nor \
             settings of the startup packet, and transactions only by their BEGIN and COMMIT."
                .to_owned(),
        );
    }
    if facts.untimed_executions > 0 {
        limits.push(format!(
            "{} without a duration: their transactions count as shorter than they were, and \
             fewer as open at once.",
            counted(facts.untimed_executions, "execution")
        ));
    }
    if facts.inferred_sessions > 0 {
        limits.push(format!(
            "{} open when the capture began: earlier state is missing, and their session time \
             starts with the capture.",
            counted_sessions(facts.inferred_sessions)
        ));
    }
    if facts.unended_sessions > 0 {
        limits.push(format!(
            "{} open when the capture ended: state that they leave later is missing.",
            counted_sessions(facts.unended_sessions)
        ));
    }
    if facts.uncounted_sessions > 0 {
        limits.push(format!(
            "{} not counted, because too many sessions were open.",
            counted(facts.uncounted_sessions, "event")
        ));
    }
    if facts.unreadable_texts > 0 {
        limits.push(format!(
            "{} with a text that PostgreSQL's grammar does not accept: what they leave is not \
             known.",
            counted(facts.unreadable_texts, "execution")
        ));
    }
    limits.extend(
        [
            "No capture shows what functions do, or which functions triggers, views, defaults and \
             operators call.",
            "pg_try_advisory_lock counts as successful: the time with locks may be too long.",
            "search_path counts as a setting that servers do not report, but PostgreSQL 18 \
             reports it.",
        ]
        .map(str::to_owned),
    );
    limits
}

fn counted_sessions(count: u64) -> String {
    let was = if count == 1 { "was" } else { "were" };
    format!("{} {was}", counted(count, "session"))
}

/// Returns the reason for the mode of a group of clients, for people.
fn reason(clients: &ClientAdvice) -> &'static str {
    match clients.reason {
        ModeReason::NoState => "transactions leave no state that transaction mode would lose",
        ModeReason::StateFollows => "the state that transactions leave follows the client",
        ModeReason::PartlyPinned => "clients are pinned to a server for a part of their time",
        ModeReason::MostlyPinned => {
            "clients would be pinned for nearly all of their time, so adaptive mode saves nothing"
        }
        ModeReason::SequenceReads => {
            "currval or lastval is called in a later transaction than nextval, which adaptive mode \
             does not detect"
        }
    }
}

/// Returns the name of a reason in documents.
fn reason_code(clients: &ClientAdvice) -> &'static str {
    match clients.reason {
        ModeReason::NoState => "no_state",
        ModeReason::StateFollows => "state_follows",
        ModeReason::PartlyPinned => "partly_pinned",
        ModeReason::MostlyPinned => "mostly_pinned",
        ModeReason::SequenceReads => "sequence_reads",
    }
}

/// Returns what transaction mode and adaptive mode do with state.
fn consequence(state: &LeftState) -> &'static str {
    match state.kind {
        StateKind::Setting => "lost in transaction mode; follow the client in adaptive mode",
        StateKind::Channel => "follows the client in both modes, unless notifications are disabled",
        StateKind::Function => "may be lost in transaction mode; pinned in adaptive mode",
        _ => "lost in transaction mode; pinned in adaptive mode",
    }
}

#[cfg(test)]
mod tests;
