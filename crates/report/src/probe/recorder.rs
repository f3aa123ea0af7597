//! Renders the activity of a flight recorder.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_probe::{
    checkpoints::ProbeSource,
    live::RecordingStop,
    recorder::{
        HostPressure, NoteKind, RecordedSource, RecorderEvent, RecordingNote, RecordingTotals,
        Thresholds,
    },
};

use super::rows;

/// Renders the output file, the thresholds, and the source of each metric.
pub fn started(output: &Path, thresholds: &Thresholds, metrics: &[RecordedSource]) -> String {
    let triggers: Vec<_> = thresholds.settings().map(|setting| setting.to_string()).collect();
    let triggers = if triggers.is_empty() { "none".to_owned() } else { triggers.join(", ") };
    let mut out = format!("recording to {}; triggers: {triggers}\n", output.display());
    for RecordedSource { metric, source, limitation } in metrics {
        let source = source.map_or("none", |source| source.as_str());
        let limitation =
            if limitation.is_empty() { String::new() } else { format!("  {limitation}") };
        let _ = writeln!(out, "  {metric:<12} {source:<7}{limitation}");
    }
    let is_traced = |metric: &RecordedSource| {
        metric.metric == "extend" && metric.source == Some(ProbeSource::Bpf)
    };
    if thresholds.extend_p99.is_some() && !metrics.iter().any(is_traced) {
        out.push_str("extend-p99 cannot fire: extension locks are not traced\n");
    }
    let has_sessions = metrics
        .iter()
        .any(|metric| metric.metric == "sessions" && metric.source == Some(ProbeSource::Sql));
    let silent: Vec<_> = thresholds
        .settings()
        .filter(|setting| setting.kind.needs_session() && !has_sessions)
        .map(|setting| setting.kind.name())
        .collect();
    if !silent.is_empty() {
        let _ = writeln!(out, "{} cannot fire: name the server by a URI", silent.join(", "));
    }
    if thresholds.pressure.is_some() && HostPressure::read().highest().is_none() {
        out.push_str("pressure cannot fire: this kernel has no /proc/pressure (PSI)\n");
    }
    out
}

/// Renders an event as a line; `None` for events that people need not see.
pub fn event_line(event: &RecorderEvent) -> Option<String> {
    let (at_us, line) = match event {
        RecorderEvent::ThresholdCrossed(crossed) => (crossed.at_us, format!("trigger {crossed}")),
        RecorderEvent::Note(RecordingNote { at_us, kind: NoteKind::ServerEnded, text }) => {
            (*at_us, format!("{text}; waiting for it to restart"))
        }
        RecorderEvent::Note(RecordingNote { at_us, text, .. }) => (*at_us, text.clone()),
        _ => return None,
    };
    let at = UNIX_EPOCH + Duration::from_micros(u64::try_from(at_us).unwrap_or(0));
    Some(format!("{}  {line}\n", rows::time(at)))
}

/// Renders the reason why recording ended, and how much was recorded.
pub fn totals(totals: &RecordingTotals, reason: RecordingStop) -> String {
    let RecordingTotals { elapsed, recorded, samples, triggered, suppressed, cpu, .. } = totals;
    let mut out = format!("{}  {reason}\n", rows::time(SystemTime::now()));
    let _ = writeln!(
        out,
        "{} of {} recorded, {samples} samples; {:.2} % of one CPU",
        rows::duration(*recorded),
        rows::duration(*elapsed),
        100.0 * cpu.as_secs_f64() / elapsed.as_secs_f64().max(1e-9)
    );
    let _ = writeln!(
        out,
        "triggers fired {triggered} times, and were suppressed for {suppressed} seconds"
    );
    out
}

/// Returns a remark for each kind of data that is missing from the recording.
pub fn totals_remarks(totals: &RecordingTotals) -> Vec<String> {
    let lost = totals.lost.descriptions().into_iter();
    let mut remarks: Vec<_> = lost.map(|(number, what)| format!("{number} {what}")).collect();
    if totals.omitted > 0 {
        remarks.push(format!("{} records of episodes did not fit", totals.omitted));
    }
    if let Some(trouble) = &totals.trouble {
        remarks.push(format!("the end of the recording was not written: {trouble}"));
    }
    remarks
}
