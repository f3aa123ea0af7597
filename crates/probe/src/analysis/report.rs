//! A recording as a versioned JSON document.
//!
//! Within a version fields are never renamed or removed; new ones may be added. The suffix of a
//! name is its unit: `_us` is microseconds (for times, since 1970), `_seconds` is seconds. `from`
//! and `to` are times as in RFC 3339. Unknown values are `null`.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use super::{
    culprits::Culprit,
    deadlocks::{CircleMember, DeadlockHistory, UnseenDeadlocks, WaitCircle, deadlocks},
    story::story,
    summary::summarize,
    time_by::{TimeDimension, TimeShare, database_time_by},
    units,
    window::{RecordingWindow, TimeBucket},
};
use crate::{
    checkpoints::ProbeSource,
    recorder::{HostPressure, LogHistogram, LostCounts, RecordedCounters, RecordedSecond},
    waits::TimeCategory,
};
/// Value of the report's `version` field.
pub const VERSION: u32 = 1;
/// Maximum number of deadlocks in the report, and of circles.
const DEADLOCKS_MAX: usize = 20;

/// The report on a recording, serialized as one JSON document.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct RecordingReport {
    /// Always `howdah-flight`.
    pub format: &'static str,
    /// Version of the format: [`VERSION`].
    pub version: u32,
    /// The most expensive finding in one line, or that nothing stands out.
    pub summary: String,
    story: Vec<String>,
    findings: Vec<FindingDocument>,
    remarks: Vec<String>,
    from: String,
    to: String,
    recorded_seconds: usize,
    servers: Vec<ServerDocument>,
    phases: Vec<PhaseDocument>,
    seconds: Vec<SecondDocument>,
    database_time: BTreeMap<&'static str, Vec<TimeShareDocument>>,
    #[serde(flatten)]
    deadlocks: DeadlocksDocument,
    counters: Vec<CountersDocument>,
    pressure: Vec<PressureDocument>,
    triggers: Vec<ThresholdDocument>,
    exact: Vec<TracedCallsDocument>,
    notes: Vec<NoteDocument>,
    lost: LostEventsDocument,
    cpu_us: u64,
    file_bytes_max: u64,
    /// The reason of the last proper end of the recording; `None` if there is none.
    end: Option<String>,
}

#[derive(Debug, Serialize)]
struct FindingDocument {
    text: String,
    evidence: String,
    cost_seconds: f64,
    from_us: Option<i64>,
    to_us: Option<i64>,
    culprits: Vec<CulpritDocument>,
}

#[derive(Debug, Serialize)]
struct CulpritDocument {
    role: &'static str,
    text: String,
    pid: Option<u32>,
    pids: Vec<u32>,
    kind: Option<String>,
    statement: Option<String>,
    database: Option<String>,
    user: Option<String>,
    application: Option<String>,
    client: Option<String>,
    state: Option<String>,
    age_seconds: Option<f64>,
    relation: Option<String>,
    sessions: usize,
    session_seconds: f64,
    temp_bytes: u64,
}

#[derive(Debug, Serialize)]
struct TimeShareDocument {
    name: Option<String>,
    session_seconds: f64,
    share: f64,
    main_event: String,
}

#[derive(Debug, Serialize)]
struct DeadlocksDocument {
    deadlocks: Vec<DeadlockDocument>,
    deadlocks_omitted: usize,
    wait_circles: Vec<DeadlockDocument>,
    wait_circles_omitted: usize,
    unseen_deadlocks: Vec<UnseenDeadlocksDocument>,
    unseen_deadlocks_omitted: usize,
}

#[derive(Debug, Serialize)]
struct DeadlockDocument {
    from_us: i64,
    to_us: i64,
    members: Vec<DeadlockMemberDocument>,
}

#[derive(Debug, Serialize)]
struct DeadlockMemberDocument {
    pid: u32,
    waits_for: Vec<u32>,
    kind: Option<String>,
    user: Option<String>,
    database: Option<String>,
    application: Option<String>,
    client: Option<String>,
    statement: Option<String>,
    lock: Option<String>,
    mode: Option<String>,
    relation: Option<String>,
    transaction_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct UnseenDeadlocksDocument {
    from_us: i64,
    to_us: i64,
    count: u64,
}

/// Growth of the server's counters, and present values.
#[derive(Debug, Serialize)]
struct CountersDocument {
    at_us: i64,
    elapsed_us: u64,
    commits: u64,
    rollbacks: u64,
    deadlocks: u64,
    temp_files: u64,
    temp_bytes: u64,
    sessions_started: u64,
    timed_checkpoints: u64,
    requested_checkpoints: u64,
    clients: u64,
    replay_lag_bytes: Option<u64>,
    replay_lag_ms: Option<u64>,
}

/// Percentages of the last ten seconds.
#[derive(Debug, Serialize)]
struct PressureDocument {
    at_us: i64,
    cpu: Option<f64>,
    io: Option<f64>,
    memory: Option<f64>,
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
    limitation: String,
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
    extension: Option<LatencyDocument>,
    extension_holds: Option<LatencyDocument>,
    relations: Vec<RelationDocument>,
    examined: Option<u64>,
    allocations: Option<u64>,
    waits: Vec<WaitDocument>,
}

#[derive(Debug, Serialize)]
struct LatencyDocument {
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
    /// Average number of processes in this wait event.
    processes: f64,
}

#[derive(Debug, Serialize)]
struct ThresholdDocument {
    at_us: i64,
    trigger: &'static str,
    value: f64,
    threshold: f64,
    suppressed: u64,
}

#[derive(Debug, Serialize)]
struct TracedCallsDocument {
    at_us: i64,
    figure: String,
    operation: String,
    calls: LatencyDocument,
    subjects: Vec<SubjectDocument>,
}

/// The calls of a second on one object.
#[derive(Debug, Serialize)]
struct SubjectDocument {
    subject: String,
    calls: u64,
    total_us: u64,
}

#[derive(Debug, Serialize)]
struct NoteDocument {
    at_us: i64,
    text: String,
}

#[derive(Debug, Serialize)]
struct LostEventsDocument {
    missed_samples: u64,
    locks: u64,
    no_start: u64,
    skipped: u64,
    phases: u64,
    calls: u64,
    uncounted_samples: u64,
    records: u64,
    unreadable: u64,
}

/// Builds the report of a recording.
pub fn report(window: &RecordingWindow) -> RecordingReport {
    let summary = summarize(window);
    let findings = summary.findings.into_iter().map(|finding| FindingDocument {
        text: finding.text,
        evidence: finding.evidence,
        cost_seconds: finding.cost_s,
        from_us: finding.span.map(|span| span.from_us),
        to_us: finding.span.map(|span| span.to_us),
        culprits: finding.culprits.into_iter().map(culprit_document).collect(),
    });
    let span = window.span();
    let LostCounts {
        missed_samples,
        locks,
        no_start,
        skipped,
        phases,
        calls,
        uncounted_samples,
        records,
    } = window.lost;
    let unreadable = window.unreadable;
    RecordingReport {
        format: "howdah-flight",
        version: VERSION,
        summary: summary.headline,
        story: story(window).into_iter().map(|paragraph| paragraph.text).collect(),
        findings: findings.collect(),
        remarks: summary.remarks,
        from: units::timestamp(span.from_us),
        to: units::timestamp(span.to_us),
        recorded_seconds: window.seconds.len(),
        servers: servers(window),
        phases: window
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
        seconds: window.seconds.iter().map(|second| second_document(window, second)).collect(),
        database_time: database_time(window),
        deadlocks: deadlocks_document(&deadlocks(window)),
        counters: window.counters.iter().map(counters_document).collect(),
        pressure: window.pressures.iter().map(pressure_document).collect(),
        triggers: window
            .crossings
            .iter()
            .map(|fired| ThresholdDocument {
                at_us: fired.at_us,
                trigger: fired.kind.name(),
                value: fired.value_milli as f64 / 1e3,
                threshold: fired.threshold_milli as f64 / 1e3,
                suppressed: fired.suppressed,
            })
            .collect(),
        exact: window
            .traced_calls
            .iter()
            .map(|exact| TracedCallsDocument {
                at_us: exact.at_us,
                figure: exact.metric.clone(),
                operation: exact.operation.clone(),
                calls: latency(&exact.calls),
                subjects: exact
                    .subjects
                    .iter()
                    .map(|(subject, (calls, total_us))| SubjectDocument {
                        subject: window.subject_name(subject),
                        calls: *calls,
                        total_us: *total_us,
                    })
                    .collect(),
            })
            .collect(),
        notes: window
            .notes
            .iter()
            .map(|note| NoteDocument { at_us: note.at_us, text: note.text.clone() })
            .collect(),
        lost: LostEventsDocument {
            missed_samples,
            locks,
            no_start,
            skipped,
            phases,
            calls,
            uncounted_samples,
            records,
            unreadable,
        },
        cpu_us: window.seconds.iter().map(|second| second.cpu_us).sum(),
        file_bytes_max: window.max_bytes,
        end: window.ended.as_ref().map(|ended| ended.reason.clone()),
    }
}

fn known(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn deadlocks_document(history: &DeadlockHistory) -> DeadlocksDocument {
    let DeadlockHistory { deadlocks, circles, unseen } = history;
    let omitted = |count: usize| count.saturating_sub(DEADLOCKS_MAX);
    let unseen_document = |UnseenDeadlocks { span, count }: &UnseenDeadlocks| {
        UnseenDeadlocksDocument { from_us: span.from_us, to_us: span.to_us, count: *count }
    };
    DeadlocksDocument {
        deadlocks: deadlocks.iter().take(DEADLOCKS_MAX).map(deadlock_document).collect(),
        deadlocks_omitted: omitted(deadlocks.len()),
        wait_circles: circles.iter().take(DEADLOCKS_MAX).map(deadlock_document).collect(),
        wait_circles_omitted: omitted(circles.len()),
        unseen_deadlocks: unseen.iter().take(DEADLOCKS_MAX).map(unseen_document).collect(),
        unseen_deadlocks_omitted: omitted(unseen.len()),
    }
}

fn deadlock_document(WaitCircle { span, members }: &WaitCircle) -> DeadlockDocument {
    let known = |text: &str| known(text.to_owned());
    let member = |member: &CircleMember| DeadlockMemberDocument {
        pid: member.pid,
        waits_for: member.waits_for.clone(),
        kind: known(&member.kind),
        user: known(&member.user),
        database: known(&member.database),
        application: known(&member.application),
        client: known(&member.client),
        statement: known(&member.statement),
        lock: known(&member.lock),
        mode: known(&member.mode),
        relation: member.relation.as_deref().map(str::to_owned),
        transaction_seconds: member.transaction_ms.map(|ms| ms as f64 / 1e3),
    };
    let members = members.iter().map(member).collect();
    DeadlockDocument { from_us: span.from_us, to_us: span.to_us, members }
}

fn culprit_document(culprit: Culprit) -> CulpritDocument {
    let text = culprit.line();
    CulpritDocument {
        role: culprit.role.as_str(),
        text,
        pid: culprit.pid,
        pids: culprit.pids,
        kind: known(culprit.kind),
        statement: known(culprit.statement),
        database: known(culprit.database),
        user: known(culprit.user),
        application: known(culprit.application),
        client: known(culprit.client),
        state: known(culprit.state),
        age_seconds: culprit.age_s,
        relation: culprit.relation,
        sessions: culprit.sessions,
        session_seconds: culprit.time_s,
        temp_bytes: culprit.temp_bytes,
    }
}

fn database_time(window: &RecordingWindow) -> BTreeMap<&'static str, Vec<TimeShareDocument>> {
    let document = |TimeShare { name, seconds, share, main_event }: TimeShare| TimeShareDocument {
        name,
        session_seconds: seconds,
        share,
        main_event,
    };
    let documents = |(dimension, shares): (TimeDimension, Vec<TimeShare>)| {
        (dimension.as_str(), shares.into_iter().map(document).collect())
    };
    database_time_by(window).into_iter().map(documents).collect()
}

fn counters_document(counters: &RecordedCounters) -> CountersDocument {
    let RecordedCounters {
        at_us,
        elapsed_us,
        commits,
        rollbacks,
        deadlocks,
        temp_files,
        temp_bytes,
        sessions_started,
        timed_checkpoints,
        requested_checkpoints,
        clients,
        replay_lag_bytes,
        replay_lag_ms,
    } = *counters;
    CountersDocument {
        at_us,
        elapsed_us,
        commits,
        rollbacks,
        deadlocks,
        temp_files,
        temp_bytes,
        sessions_started,
        timed_checkpoints,
        requested_checkpoints,
        clients,
        replay_lag_bytes,
        replay_lag_ms,
    }
}

fn pressure_document(pressure: &HostPressure) -> PressureDocument {
    let percent = |hundredths: Option<u32>| Some(f64::from(hundredths?) / 100.0);
    PressureDocument {
        at_us: pressure.at_us,
        cpu: percent(pressure.cpu),
        io: percent(pressure.io),
        memory: percent(pressure.memory),
    }
}

fn servers(window: &RecordingWindow) -> Vec<ServerDocument> {
    let servers = window.started.iter().map(|started| ServerDocument {
        at_us: started.at_us,
        major: started.major,
        pid: started.postmaster,
        data_dir: started.data_dir.clone(),
        rate: started.rate,
        sources: started
            .sources
            .iter()
            .map(|source| SourceDocument {
                figure: source.metric.clone(),
                source: source.source.map(ProbeSource::as_str),
                limitation: source.limitation.clone(),
            })
            .collect(),
        triggers: started.triggers.clone(),
    });
    servers.collect()
}

fn second_document(window: &RecordingWindow, second: &RecordedSecond) -> SecondDocument {
    let mut bucket = TimeBucket::default();
    bucket.add(second);
    let relations = second.extension.iter().flat_map(|extension| &extension.relations);
    let waits = bucket.waits.iter().map(|((group, class, event), seconds)| WaitDocument {
        group: group_name(*group),
        class: class.clone(),
        event: event.clone(),
        processes: seconds / bucket.seconds().max(1e-9),
    });
    SecondDocument {
        at_us: second.at_us,
        elapsed_us: second.elapsed_us,
        extension: second.extension.as_ref().map(|extension| latency(&extension.waits)),
        extension_holds: second.extension.as_ref().map(|extension| latency(&extension.holds)),
        relations: relations
            .map(|of| RelationDocument {
                relation: window.relation_name(of),
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

fn latency(spread: &LogHistogram) -> LatencyDocument {
    let us = |duration: Duration| duration.as_nanos() as f64 / 1e3;
    LatencyDocument {
        count: spread.count(),
        min_us: us(spread.min()),
        mean_us: us(spread.mean()),
        p50_us: us(spread.quantile(0.5)),
        p99_us: us(spread.quantile(0.99)),
        max_us: us(spread.max()),
        total_us: us(spread.total()),
    }
}

fn group_name(group: TimeCategory) -> &'static str {
    match group {
        TimeCategory::Database => "database",
        TimeCategory::Background => "background",
        TimeCategory::Idle => "idle",
    }
}
