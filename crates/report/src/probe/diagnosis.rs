//! Renders a diagnosis: which metrics can be measured on a server.

use std::fmt::Write as _;

use howdah_inspect::ExecutableState;
use howdah_probe::doctor::{DiagnosedServer, ProbeDiagnosis};

/// Maximum number of patched symbols to list.
const NAMED_MAX: usize = 8;

/// Renders the server, the privileges, and the source of each metric.
pub fn diagnosis(server: &DiagnosedServer, diagnosis: &ProbeDiagnosis) -> String {
    let ProbeDiagnosis { kernel, capabilities, metrics, .. } = diagnosis;
    let DiagnosedServer { major, postmaster, data_dir, executable, usdt_probes, .. } = server;
    let mut out = format!("server      PostgreSQL {major}, postmaster {postmaster}\n");
    let _ = writeln!(out, "data        {}", data_dir.display());
    let state = match server.executable_state {
        ExecutableState::InPlace => "",
        ExecutableState::Replaced => "  (the file has been replaced since: it was upgraded)",
        ExecutableState::Deleted => "  (the file no longer exists: it was upgraded)",
    };
    let _ = writeln!(out, "binary      {}{state}", executable.display());
    let build_id = server.build_id.as_deref().unwrap_or("none");
    let _ = writeln!(out, "build id    {build_id}");
    let built = if *usdt_probes == 0 { " (built without --enable-dtrace)" } else { "" };
    let _ = writeln!(out, "code        {}", state_of_code(&server.patched_symbols));
    let _ = writeln!(out, "probes      {usdt_probes} USDT probes{built}");
    let _ = writeln!(out, "kernel      {kernel}");
    let may = if capabilities.may_trace() {
        "can run BPF programs".to_owned()
    } else {
        format!("cannot run BPF programs: missing {}", capabilities.missing())
    };
    let _ = writeln!(out, "privileges  {may}");
    let _ = writeln!(out, "\n{:<12} {:<7} {:<15} missing", "metric", "source", "cost");
    for metric in metrics {
        let source = metric.source.map_or("none", |source| source.as_str());
        let cost = metric.cost.map_or_else(|| "-".to_owned(), |cost| cost.to_string());
        let missing = metric.missing.as_deref().unwrap_or_default();
        let _ = writeln!(out, "{:<12} {source:<7} {cost:<15} {missing}", metric.name);
    }
    out
}

/// Describes breakpoints in the server's code, and their consequences.
fn state_of_code(symbols: &[String]) -> String {
    if symbols.is_empty() {
        return "unmodified".to_owned();
    }
    let mut named = symbols[..symbols.len().min(NAMED_MAX)].to_vec();
    if symbols.len() > NAMED_MAX {
        named.push(format!("{} more", symbols.len() - NAMED_MAX));
    }
    format!(
        "breakpoints at {}\n            \
         of an attached tracer; if none is attached, of one that was killed, and each hit costs\n            \
         time until the server restarts, or until `probe doctor --clear`",
        named.join(", ")
    )
}
