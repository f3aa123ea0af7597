//! Encodes a server's state at one moment as a frame, and decodes it.
//!
//! A frame depends on the previous ones of its segment: texts are referenced by number, and rows
//! are stored as differences. Frames are therefore read in order, from the first of their segment.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_codec::{ByteReader, ByteWriter as _};
use howdah_collect::{
    Activity, BackendProcess, MissingPrivilege, Overview, RateView, ServerInfo, ServerVersion,
    WorkerLimits,
};

use super::{
    backends,
    delta::{self, DeltaField},
    error::CorruptFrame,
    pooled_clients,
    texts::{self, TextReader, TextWriter, read_line},
    views,
};
use crate::{ServerHealth, ServerSnapshot, host::HostFigures, waits::WaitHistory};

const REACHED: u8 = 0;
const UNREACHABLE: u8 = 1;

/// Maximum number of missing privileges in a frame; currently there are three kinds.
const MISSING_MAX: usize = 64;

/// Encodes the frames of one server.
#[derive(Debug, Default)]
pub(super) struct FrameWriter {
    texts: TextWriter,
    backends: backends::BackendWriter,
    views: views::ViewWriter,
    pooled: Vec<pooled_clients::ClientFields>,
    figures: FrameFigures,
    server: Option<(Arc<ServerInfo>, Arc<[MissingPrivilege]>)>,
    /// Number of sessions, view rows and pooler clients encoded in this segment.
    pub(super) rows: usize,
}

/// The overview and the host figures of a frame, to which those of the next frame are compared.
#[derive(Clone, Debug, Default)]
struct FrameFigures {
    now: [DeltaField; OVERVIEW_FIELDS],
    host: [DeltaField; HostFigures::FIELDS],
}

impl FrameWriter {
    /// Starts a segment, which is independent of earlier frames.
    pub(super) fn restart(&mut self) {
        let views = std::mem::take(&mut self.views);
        *self = Self { views, ..Self::default() };
        self.views.restart();
    }

    /// Encodes a server's state at `at_us`, by our clock.
    pub(super) fn write(&mut self, at_us: i64, health: &ServerHealth) -> Vec<u8> {
        let mut body = Vec::new();
        let mut new_texts = Vec::new();
        match health {
            ServerHealth::Read(snapshot) => {
                body.push(REACHED);
                self.snapshot(&mut body, &mut new_texts, at_us, snapshot);
            }
            ServerHealth::Unreachable { reason, .. } => {
                body.push(UNREACHABLE);
                body.write_text(reason);
                // The next server to respond may have different counters.
                self.views.clear();
            }
            ServerHealth::Connecting => {
                body.push(UNREACHABLE);
                body.write_text("connecting");
            }
        }
        let mut out = Vec::new();
        texts::encode(&mut out, &new_texts);
        out.append(&mut body);
        out
    }

    fn snapshot(
        &mut self,
        out: &mut Vec<u8>,
        new_texts: &mut Vec<Arc<str>>,
        at_us: i64,
        snapshot: &ServerSnapshot,
    ) {
        let server = (Arc::clone(&snapshot.server), Arc::clone(&snapshot.missing));
        let is_known = self
            .server
            .as_ref()
            .is_some_and(|(identity, missing)| **identity == *server.0 && **missing == *server.1);
        out.push(u8::from(!is_known));
        if !is_known {
            encode_server(out, &server.0, &server.1);
            self.server = Some(server);
        }
        let taken_us = snapshot.activity.taken_us;
        out.write_signed(taken_us.wrapping_sub(at_us));
        out.write_varint(snapshot.duration.as_micros().try_into().unwrap_or(u64::MAX));
        out.write_text(snapshot.view_error.as_deref().unwrap_or_default());
        let before = snapshot.previous_overview.as_ref().map(overview_fields);
        // The previous overview usually equals the overview in the previous frame.
        out.push(match &before {
            None => 0,
            Some(before) if *before == self.figures.now => 1,
            Some(_) => 2,
        });
        if let Some(before) = before {
            delta::encode(out, &before, &self.figures.now, 0, 0);
            self.figures.now = before;
        }
        let now = overview_fields(&snapshot.overview);
        delta::encode(out, &now, &self.figures.now, 0, 0);
        let host = snapshot.host.as_ref().map_or([None; HostFigures::FIELDS], HostFigures::fields);
        delta::encode(out, &host, &self.figures.host, 0, 0);
        self.figures = FrameFigures { now, host };
        let rows = &snapshot.activity.backends;
        let sessions = (&**rows, snapshot.processes.as_ref());
        self.backends.encode(out, sessions, taken_us, &mut self.texts, new_texts);
        self.rows += rows.len();
        let views: Vec<&RateView> = snapshot.view.iter().chain(&snapshot.background_view).collect();
        out.write_count(views.len());
        for rate_view in views {
            let mut words = views::SegmentTexts { texts: &mut self.texts, new_texts };
            self.views.encode(out, rate_view, &mut words);
            self.rows += rate_view.rows.len();
        }
        let pooled = snapshot.pooled_clients.as_deref();
        pooled_clients::encode(out, pooled, &mut self.pooled, &mut self.texts, new_texts);
        self.rows += pooled.map_or(0, |pooled| pooled.clients.len());
    }
}

/// Decodes the frames of one segment, in order.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    texts: TextReader,
    backends: Vec<backends::BackendFields>,
    views: views::ViewReader,
    pooled: Vec<pooled_clients::ClientFields>,
    figures: FrameFigures,
    server: Option<(Arc<ServerInfo>, Arc<[MissingPrivilege]>)>,
    last: Option<Arc<ServerSnapshot>>,
}

impl FrameReader {
    /// Decodes a server's state at `at_us`, and the views sampled at that time. The snapshot has no
    /// wait events, because those are stored separately.
    pub(super) fn read(
        &mut self,
        at_us: i64,
        bytes: &[u8],
    ) -> Result<(ServerHealth, Vec<RateView>), CorruptFrame> {
        let mut input = ByteReader::new(bytes);
        self.texts.decode(&mut input)?;
        match input.byte()? {
            REACHED => {
                let (snapshot, views) = self.snapshot(&mut input, at_us)?;
                let snapshot = Arc::new(snapshot);
                self.last = Some(Arc::clone(&snapshot));
                Ok((ServerHealth::Read(snapshot), views))
            }
            UNREACHABLE => {
                let reason = read_line(&mut input)?.to_string();
                let now = Instant::now();
                let last = self.last.clone();
                Ok((
                    ServerHealth::Unreachable { reason, since: now, retry_at: now, last },
                    Vec::new(),
                ))
            }
            _ => Err(CorruptFrame::Kind),
        }
    }

    fn snapshot(
        &mut self,
        input: &mut ByteReader<'_>,
        at_us: i64,
    ) -> Result<(ServerSnapshot, Vec<RateView>), CorruptFrame> {
        if input.byte()? != 0 {
            self.server = Some(decode_server(input)?);
        }
        let (identity, missing) = self.server.clone().ok_or(CorruptFrame::Reference)?;
        let taken_us = at_us.wrapping_add(input.signed()?);
        let cost = Duration::from_micros(input.varint()?);
        let view_error = Some(read_line(input)?.to_string()).filter(|error| !error.is_empty());
        let has_before = input.byte()? != 0;
        if has_before {
            delta::decode(input, &mut self.figures.now, 0, 0)?;
        }
        let before = has_before.then(|| overview_from_fields(&self.figures.now));
        delta::decode(input, &mut self.figures.now, 0, 0)?;
        delta::decode(input, &mut self.figures.host, 0, 0)?;
        let (backends, processes) =
            backends::decode(input, &mut self.backends, taken_us, &self.texts)?;
        let mut views = Vec::new();
        for _ in 0..input.count_up_to(howdah_collect::VIEWS.len().max(64))? {
            views.extend(self.views.decode(input, &self.texts)?);
        }
        let pooled = pooled_clients::decode(input, &mut self.pooled, &self.texts)?;
        let snapshot = ServerSnapshot {
            server: identity,
            missing,
            sampled_at: Instant::now(),
            activity: Activity { taken_us, backends },
            overview: overview_from_fields(&self.figures.now),
            previous_overview: before,
            minute_ago: None,
            view: None,
            view_error,
            pooled_clients: pooled.map(Arc::new),
            background_view: None,
            waits: Arc::new(WaitHistory::default()),
            host: HostFigures::from_fields(&self.figures.host),
            processes: (!processes.is_empty()).then_some(processes),
            agent_problem: None,
            session: None,
            sampled_us: at_us,
            duration: cost,
        };
        Ok((snapshot, views))
    }
}

fn encode_server(out: &mut Vec<u8>, identity: &ServerInfo, missing: &[MissingPrivilege]) {
    out.write_varint(identity.version.0.into());
    out.write_signed(identity.started_us);
    out.write_text(&identity.host);
    out.write_varint(identity.port.into());
    out.write_text(&identity.database);
    out.write_signed(identity.max_connections);
    out.write_text(identity.data_directory.as_deref().unwrap_or_default());
    out.write_count(missing.len().min(MISSING_MAX));
    for missing in missing.iter().take(MISSING_MAX) {
        out.write_text(&missing.what);
        out.write_text(&missing.remedy);
    }
}

fn decode_server(
    input: &mut ByteReader<'_>,
) -> Result<(Arc<ServerInfo>, Arc<[MissingPrivilege]>), CorruptFrame> {
    let version = input.narrow()?;
    let identity = ServerInfo {
        version: ServerVersion(version),
        started_us: input.signed()?,
        host: read_line(input)?.to_string(),
        port: input.narrow()?,
        database: read_line(input)?.to_string(),
        max_connections: input.signed()?,
        data_directory: Some(read_line(input)?.to_string())
            .filter(|directory| !directory.is_empty()),
        backend: BackendProcess::default(),
    };
    let missing = (0..input.count_up_to(MISSING_MAX)?).map(|_| {
        let what = read_line(input)?.to_string().into();
        Ok(MissingPrivilege { what, remedy: read_line(input)?.to_string() })
    });
    let missing = missing.collect::<Result<Vec<_>, CorruptFrame>>()?;
    Ok((Arc::new(identity), missing.into()))
}

const OVERVIEW_FIELDS: usize = 28;

fn overview_fields(overview: &Overview) -> [DeltaField; OVERVIEW_FIELDS] {
    [
        Some(overview.taken_us),
        Some(overview.is_standby.into()),
        Some(overview.commits),
        Some(overview.rollbacks),
        Some(overview.blocks_hit),
        Some(overview.blocks_read),
        Some(overview.temp_bytes),
        Some(overview.deadlocks),
        Some(overview.rows_changed),
        overview.wal_bytes,
        overview.replay_lag_bytes,
        overview.replay_lag_seconds.map(|seconds| seconds.to_bits().cast_signed()),
        overview.frozen_age,
        overview.followers_lag_bytes,
        overview.followers_lag_seconds.map(|seconds| seconds.to_bits().cast_signed()),
        overview.checkpoints_requested,
        overview.temp_file_bytes,
        overview.temp_file_pid,
        Some(overview.temp_files),
        overview.slots,
        overview.limits.autovacuum,
        overview.limits.processes,
        overview.limits.parallel,
        overview.limits.logical,
        overview.limits.wal_senders,
        overview.limits.slots,
        overview.database_bytes,
        overview.database_growth,
    ]
}

fn overview_from_fields(fields: &[DeltaField; OVERVIEW_FIELDS]) -> Overview {
    let number = |at: usize| fields[at].unwrap_or(0);
    Overview {
        taken_us: number(0),
        is_standby: number(1) != 0,
        commits: number(2),
        rollbacks: number(3),
        blocks_hit: number(4),
        blocks_read: number(5),
        temp_bytes: number(6),
        deadlocks: number(7),
        rows_changed: number(8),
        wal_bytes: fields[9],
        replay_lag_bytes: fields[10],
        replay_lag_seconds: fields[11].map(|bits| f64::from_bits(bits.cast_unsigned())),
        frozen_age: fields[12],
        followers_lag_bytes: fields[13],
        followers_lag_seconds: fields[14].map(|bits| f64::from_bits(bits.cast_unsigned())),
        checkpoints_requested: fields[15],
        temp_file_bytes: fields[16],
        temp_file_pid: fields[17],
        temp_files: number(18),
        slots: fields[19],
        limits: WorkerLimits {
            autovacuum: fields[20],
            processes: fields[21],
            parallel: fields[22],
            logical: fields[23],
            wal_senders: fields[24],
            slots: fields[25],
        },
        database_bytes: fields[26],
        database_growth: fields[27],
        // Not recorded: only alerts use it, and recordings are not checked for alerts.
        followers_hidden: 0,
    }
}
