//! A recording for programs: one document, versioned.
//!
//! Fields are never renamed or removed within a version; new ones may come. Moments are microseconds since 1970
//! or RFC 3339 as their names say, durations are microseconds, what is not known is `null`.

use std::time::Duration;

use howdah_probe::{
    checkpoints::Source,
    recorder::{Lost, Second, Spread},
    waits::Group,
};
use serde::Serialize;

use crate::{
    timeline::{Step, Timeline},
    units,
    verdict::verdict,
};

/// Version of [`Document`], in its `version` field.
pub const VERSION: u32 = 1;

/// The document.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Document {
    /// Always `howdah-flight`.
    pub format: &'static str,
    /// See [`VERSION`].
    pub version: u32,
    /// The verdict in one line.
    pub verdict: String,
    findings: Vec<FindingDocument>,
    remarks: Vec<String>,
    from: String,
    to: String,
    recorded_seconds: usize,
    servers: Vec<ServerDocument>,
    phases: Vec<PhaseDocument>,
    seconds: Vec<SecondDocument>,
    triggers: Vec<TriggerDocument>,
    exact: Vec<ExactDocument>,
    notes: Vec<NoteDocument>,
    lost: LostDocument,
    cpu_us: u64,
    file_bytes_max: u64,
    /// Why it ended, if it did so well.
    end: Option<String>,
}

#[derive(Debug, Serialize)]
struct FindingDocument {
    text: String,
    evidence: String,
    cost_seconds: f64,
}

#[derive(Debug, Serialize)]
struct ServerDocument {
    at_us: i64,
    major: u32,
    pid: u32,
    data_dir: String,
    rate: u32,
    sources: Vec<SourceDocument>,
    triggers: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SourceDocument {
    figure: String,
    source: Option<&'static str>,
    lacks: String,
}

#[derive(Debug, Serialize)]
struct PhaseDocument {
    phase: &'static str,
    depth: u32,
    from_us: i64,
    to_us: i64,
    is_open: bool,
    buffers: Option<u64>,
    files: Option<u64>,
}

#[derive(Debug, Serialize)]
struct SecondDocument {
    at_us: i64,
    elapsed_us: u64,
    extension: Option<SpreadDocument>,
    relations: Vec<RelationDocument>,
    examined: Option<u64>,
    allocations: Option<u64>,
    waits: Vec<WaitDocument>,
}

#[derive(Debug, Serialize)]
struct SpreadDocument {
    count: u64,
    min_us: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    total_us: f64,
}

#[derive(Debug, Serialize)]
struct RelationDocument {
    relation: String,
    waits: u64,
    total_us: u64,
    max_us: u64,
}

#[derive(Debug, Serialize)]
struct WaitDocument {
    group: &'static str,
    class: String,
    event: String,
    /// How many processes were at it on average.
    processes: f64,
}

#[derive(Debug, Serialize)]
struct TriggerDocument {
    at_us: i64,
    trigger: &'static str,
    value: f64,
    threshold: f64,
    held_back: u64,
}

#[derive(Debug, Serialize)]
struct ExactDocument {
    at_us: i64,
    figure: String,
    operation: String,
    calls: SpreadDocument,
}

#[derive(Debug, Serialize)]
struct NoteDocument {
    at_us: i64,
    text: String,
}

#[derive(Debug, Serialize)]
struct LostDocument {
    looks: u64,
    locks: u64,
    unpaired: u64,
    skipped: u64,
    phases: u64,
    calls: u64,
    samples: u64,
    records: u64,
    unread: u64,
}

/// A recording as a document.
#[must_use]
pub fn document(timeline: &Timeline) -> Document {
    let verdict = verdict(timeline);
    let findings = verdict.findings.into_iter().map(|finding| FindingDocument {
        text: finding.text,
        evidence: finding.evidence,
        cost_seconds: finding.cost_s,
    });
    let span = timeline.span();
    let Lost { looks, locks, unpaired, skipped, phases, calls, samples, records } = timeline.lost;
    let unread = timeline.unread;
    Document {
        format: "howdah-flight",
        version: VERSION,
        verdict: verdict.headline,
        findings: findings.collect(),
        remarks: verdict.remarks,
        from: units::moment(span.from_us),
        to: units::moment(span.to_us),
        recorded_seconds: timeline.seconds.len(),
        servers: servers(timeline),
        phases: timeline
            .phases
            .iter()
            .map(|phase| PhaseDocument {
                phase: phase.phase.as_str(),
                depth: phase.depth,
                from_us: phase.span.from_us,
                to_us: phase.span.to_us,
                is_open: phase.is_open,
                buffers: phase.buffers,
                files: phase.files,
            })
            .collect(),
        seconds: timeline.seconds.iter().map(|second| second_of(timeline, second)).collect(),
        triggers: timeline
            .fired
            .iter()
            .map(|fired| TriggerDocument {
                at_us: fired.at_us,
                trigger: fired.kind.name(),
                value: fired.value_milli as f64 / 1e3,
                threshold: fired.threshold_milli as f64 / 1e3,
                held_back: fired.held_back,
            })
            .collect(),
        exact: timeline
            .exact
            .iter()
            .map(|exact| ExactDocument {
                at_us: exact.at_us,
                figure: exact.figure.clone(),
                operation: exact.operation.clone(),
                calls: spread(&exact.calls),
            })
            .collect(),
        notes: timeline
            .notes
            .iter()
            .map(|note| NoteDocument { at_us: note.at_us, text: note.text.clone() })
            .collect(),
        lost: LostDocument {
            looks,
            locks,
            unpaired,
            skipped,
            phases,
            calls,
            samples,
            records,
            unread,
        },
        cpu_us: timeline.seconds.iter().map(|second| second.cpu_us).sum(),
        file_bytes_max: timeline.max_bytes,
        end: timeline.ended.as_ref().map(|ended| ended.reason.clone()),
    }
}

fn servers(timeline: &Timeline) -> Vec<ServerDocument> {
    let servers = timeline.started.iter().map(|started| ServerDocument {
        at_us: started.at_us,
        major: started.major,
        pid: started.postmaster,
        data_dir: started.data_dir.clone(),
        rate: started.rate,
        sources: started
            .sources
            .iter()
            .map(|source| SourceDocument {
                figure: source.figure.clone(),
                source: source.source.map(Source::as_str),
                lacks: source.lacks.clone(),
            })
            .collect(),
        triggers: started.triggers.clone(),
    });
    servers.collect()
}

fn second_of(timeline: &Timeline, second: &Second) -> SecondDocument {
    let mut step = Step::default();
    step.add(second);
    let relations = second.extension.iter().flat_map(|extension| &extension.relations);
    let waits = step.waits.iter().map(|((group, class, event), seconds)| WaitDocument {
        group: group_name(*group),
        class: class.clone(),
        event: event.clone(),
        processes: seconds / step.seconds().max(1e-9),
    });
    SecondDocument {
        at_us: second.at_us,
        elapsed_us: second.elapsed_us,
        extension: second.extension.as_ref().map(|extension| spread(&extension.waits)),
        relations: relations
            .map(|of| RelationDocument {
                relation: timeline.name(of),
                waits: of.waits,
                total_us: of.total_us,
                max_us: of.max_us,
            })
            .collect(),
        examined: second.sweep.map(|sweep| sweep.examined),
        allocations: second.sweep.map(|sweep| sweep.allocations),
        waits: waits.collect(),
    }
}

fn spread(spread: &Spread) -> SpreadDocument {
    let us = |duration: Duration| duration.as_nanos() as f64 / 1e3;
    SpreadDocument {
        count: spread.count(),
        min_us: us(spread.min()),
        mean_us: us(spread.mean()),
        p50_us: us(spread.quantile(0.5)),
        p99_us: us(spread.quantile(0.99)),
        max_us: us(spread.max()),
        total_us: us(spread.total()),
    }
}

fn group_name(group: Group) -> &'static str {
    match group {
        Group::Database => "database",
        Group::Background => "background",
        Group::Idle => "idle",
    }
}
