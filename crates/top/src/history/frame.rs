//! What was known of a server at one moment, as the bytes of a frame and back.
//!
//! A frame stands on those before it in its segment: texts are named by their numbers, rows are what changed
//! in them. So frames are read in order, from the first of their segment.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_collect::{Activity, Identity, Missing, Overview, RateView, ServedBy, Version};

use super::{
    backends,
    bytes::{Damage, In, Out},
    pooled,
    slots::{self, Slot},
    texts::{self, Read, Written},
    views,
};
use crate::{Snapshot, Standing, host::HostFigures, waits::WaitHistory};

const READ: u8 = 0;
const AWAY: u8 = 1;

/// Most facts of a kind that a server lacks; there are three kinds of them today.
const MISSING_MAX: usize = 64;

/// Writes the frames of one server.
#[derive(Debug, Default)]
pub(super) struct FrameWriter {
    texts: Written,
    backends: backends::Before,
    views: views::Before,
    pooled: Vec<pooled::Slots>,
    figures: Figures,
    server: Option<(Arc<Identity>, Arc<[Missing]>)>,
    /// How many sessions and rows of views were written.
    pub(super) rows: usize,
}

/// Numbers of a frame that are not of a session.
#[derive(Clone, Debug, Default)]
struct Figures {
    now: [Slot; OVERVIEW_SLOTS],
    host: [Slot; HostFigures::SLOTS],
}

impl FrameWriter {
    /// Begins a segment: what follows stands on nothing before it.
    pub(super) fn restart(&mut self) {
        let views = std::mem::take(&mut self.views);
        *self = Self { views, ..Self::default() };
        self.views.restart();
    }

    /// The bytes of how it stood with a server at `at_us`, by our clock.
    pub(super) fn write(&mut self, at_us: i64, standing: &Standing) -> Vec<u8> {
        let mut body = Out::default();
        let mut fresh = Vec::new();
        match standing {
            Standing::Read(snapshot) => {
                body.byte(READ);
                self.snapshot(&mut body, &mut fresh, at_us, snapshot);
            }
            Standing::Away { reason, .. } => {
                body.byte(AWAY);
                body.text(reason);
                // What answers next may have another history.
                self.views.clear();
            }
            Standing::Connecting => {
                body.byte(AWAY);
                body.text("connecting");
            }
        }
        let mut out = Out::default();
        texts::put(&mut out, &fresh);
        out.0.append(&mut body.0);
        out.0
    }

    fn snapshot(
        &mut self,
        out: &mut Out,
        fresh: &mut Vec<Arc<str>>,
        at_us: i64,
        snapshot: &Snapshot,
    ) {
        let server = (Arc::clone(&snapshot.identity), Arc::clone(&snapshot.missing));
        let is_known = self
            .server
            .as_ref()
            .is_some_and(|(identity, missing)| **identity == *server.0 && **missing == *server.1);
        out.byte(u8::from(!is_known));
        if !is_known {
            put_server(out, &server.0, &server.1);
            self.server = Some(server);
        }
        let taken_us = snapshot.activity.taken_us;
        out.signed(taken_us.wrapping_sub(at_us));
        out.number(snapshot.cost.as_micros().try_into().unwrap_or(u64::MAX));
        out.text(snapshot.view_error.as_deref().unwrap_or_default());
        let before = snapshot.before.as_ref().map(overview_slots);
        // The one before is mostly that of the frame before.
        out.byte(match &before {
            None => 0,
            Some(before) if *before == self.figures.now => 1,
            Some(_) => 2,
        });
        if let Some(before) = before {
            slots::put(out, &before, &self.figures.now, 0, 0);
            self.figures.now = before;
        }
        let now = overview_slots(&snapshot.overview);
        slots::put(out, &now, &self.figures.now, 0, 0);
        let host = snapshot.host.as_ref().map_or([None; HostFigures::SLOTS], HostFigures::slots);
        slots::put(out, &host, &self.figures.host, 0, 0);
        self.figures = Figures { now, host };
        let rows = &snapshot.activity.backends;
        self.backends.put(out, rows, taken_us, &mut self.texts, fresh);
        self.rows += rows.len();
        let views: Vec<&RateView> = snapshot.view.iter().chain(&snapshot.also).collect();
        out.count(views.len());
        for rated in views {
            let mut words = views::Words { texts: &mut self.texts, fresh };
            self.views.put(out, rated, &mut words);
            self.rows += rated.rows.len();
        }
        let pooled = snapshot.pooled.as_deref();
        pooled::put(out, pooled, &mut self.pooled, &mut self.texts, fresh);
        self.rows += pooled.map_or(0, |pooled| pooled.clients.len());
    }
}

/// Reads the frames of one segment, in order.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    texts: Read,
    backends: Vec<backends::Slots>,
    views: views::Known,
    pooled: Vec<pooled::Slots>,
    figures: Figures,
    server: Option<(Arc<Identity>, Arc<[Missing]>)>,
    last: Option<Arc<Snapshot>>,
}

impl FrameReader {
    /// How it stood at `at_us`, and the views that were read then. The snapshot has no waits: they are kept
    /// by themselves.
    pub(super) fn read(
        &mut self,
        at_us: i64,
        bytes: &[u8],
    ) -> Result<(Standing, Vec<RateView>), Damage> {
        let mut input = In(bytes);
        self.texts.take(&mut input)?;
        match input.byte()? {
            READ => {
                let (snapshot, views) = self.snapshot(&mut input, at_us)?;
                let snapshot = Arc::new(snapshot);
                self.last = Some(Arc::clone(&snapshot));
                Ok((Standing::Read(snapshot), views))
            }
            AWAY => {
                let reason = input.line()?.to_string();
                let now = Instant::now();
                let last = self.last.clone();
                Ok((Standing::Away { reason, since: now, retry: now, last }, Vec::new()))
            }
            _ => Err(Damage::Kind),
        }
    }

    fn snapshot(
        &mut self,
        input: &mut In<'_>,
        at_us: i64,
    ) -> Result<(Snapshot, Vec<RateView>), Damage> {
        if input.byte()? != 0 {
            self.server = Some(take_server(input)?);
        }
        let (identity, missing) = self.server.clone().ok_or(Damage::Reference)?;
        let taken_us = at_us.wrapping_add(input.signed()?);
        let cost = Duration::from_micros(input.number()?);
        let view_error = Some(input.line()?.to_string()).filter(|error| !error.is_empty());
        let has_before = input.byte()? != 0;
        if has_before {
            slots::take(input, &mut self.figures.now, 0, 0)?;
        }
        let before = has_before.then(|| overview_of(&self.figures.now));
        slots::take(input, &mut self.figures.now, 0, 0)?;
        slots::take(input, &mut self.figures.host, 0, 0)?;
        let backends = backends::take(input, &mut self.backends, taken_us, &self.texts)?;
        let mut views = Vec::new();
        for _ in 0..input.count(howdah_collect::VIEWS.len().max(64))? {
            views.extend(self.views.take(input, &self.texts)?);
        }
        let pooled = pooled::take(input, &mut self.pooled, &self.texts)?;
        let snapshot = Snapshot {
            identity,
            missing,
            read: Instant::now(),
            activity: Activity { taken_us, backends },
            overview: overview_of(&self.figures.now),
            before,
            view: None,
            view_error,
            pooled: pooled.map(Arc::new),
            also: None,
            waits: Arc::new(WaitHistory::default()),
            host: HostFigures::of_slots(&self.figures.host),
            seen_us: at_us,
            cost,
        };
        Ok((snapshot, views))
    }
}

fn put_server(out: &mut Out, identity: &Identity, missing: &[Missing]) {
    out.number(identity.version.0.into());
    out.signed(identity.started_us);
    out.text(&identity.host);
    out.number(identity.port.into());
    out.text(&identity.database);
    out.signed(identity.connections_max);
    out.text(identity.data_directory.as_deref().unwrap_or_default());
    out.count(missing.len().min(MISSING_MAX));
    for missing in missing.iter().take(MISSING_MAX) {
        out.text(&missing.what);
        out.text(&missing.remedy);
    }
}

fn take_server(input: &mut In<'_>) -> Result<(Arc<Identity>, Arc<[Missing]>), Damage> {
    let version = input.number()?.try_into().map_err(|_| Damage::Number)?;
    let identity = Identity {
        version: Version(version),
        started_us: input.signed()?,
        host: input.line()?.to_string(),
        port: input.number()?.try_into().map_err(|_| Damage::Number)?,
        database: input.line()?.to_string(),
        connections_max: input.signed()?,
        data_directory: Some(input.line()?.to_string()).filter(|directory| !directory.is_empty()),
        backend: ServedBy::default(),
    };
    let missing = (0..input.count(MISSING_MAX)?).map(|_| {
        let what = input.line()?.to_string().into();
        Ok(Missing { what, remedy: input.line()?.to_string() })
    });
    let missing = missing.collect::<Result<Vec<_>, Damage>>()?;
    Ok((Arc::new(identity), missing.into()))
}

const OVERVIEW_SLOTS: usize = 15;

fn overview_slots(overview: &Overview) -> [Slot; OVERVIEW_SLOTS] {
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
    ]
}

fn overview_of(slots: &[Slot; OVERVIEW_SLOTS]) -> Overview {
    let number = |at: usize| slots[at].unwrap_or(0);
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
        wal_bytes: slots[9],
        replay_lag_bytes: slots[10],
        replay_lag_seconds: slots[11].map(|bits| f64::from_bits(bits.cast_unsigned())),
        frozen_age: slots[12],
        followers_lag_bytes: slots[13],
        followers_lag_seconds: slots[14].map(|bits| f64::from_bits(bits.cast_unsigned())),
        // Only alerts need it, and a recording is not checked for alerts.
        followers_hidden: 0,
    }
}
