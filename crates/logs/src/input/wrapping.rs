//! Telling what is around a log, and taking it off, layer by layer.

use serde::Serialize;

use super::{
    container::{Cri, Stamped, split_cri, split_stamped},
    envelopes::{self, Envelopes},
    journal::{JournalExport, JournalJson},
    json::{Objects, members},
    layer::{Found, Layer},
    pgreplay::{self, Pgreplay},
    pgreplay_go::{self, PgreplayGo},
    stamp::Calendar,
    syslog::{Header, Syslog},
};
use crate::reader::Closing;

/// What is around a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Envelope {
    /// Lines of a container runtime for Kubernetes: time, stream, tag.
    Cri,
    /// Lines with a time in ISO 8601: `kubectl logs --timestamps`, CloudWatch's export to S3.
    Timestamps,
    /// JSON of a container runtime, a cloud or CloudNativePG.
    Json,
    /// syslog files and `journalctl`'s own lines.
    Syslog,
    /// `journalctl -o json`.
    JournalJson,
    /// `journalctl -o export`.
    JournalExport,
    /// Not a log, but items of pgreplay-go.
    PgreplayGo,
    /// Not a log, but a replay file of pgreplay.
    Pgreplay,
}

impl Envelope {
    /// Every one, in the order of declaration.
    pub const ALL: [Self; 8] = [
        Self::Cri,
        Self::Timestamps,
        Self::Json,
        Self::Syslog,
        Self::JournalJson,
        Self::JournalExport,
        Self::PgreplayGo,
        Self::Pgreplay,
    ];

    /// A phrase for people: what a log came from.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cri => "a container's log (CRI)",
            Self::Timestamps => "lines with timestamps",
            Self::Json => "JSON envelopes",
            Self::Syslog => "syslog",
            Self::JournalJson => "the journal, as JSON",
            Self::JournalExport => "the journal, exported",
            Self::PgreplayGo => "pgreplay-go's items",
            Self::Pgreplay => "a replay file of pgreplay",
        }
    }

    /// What a capture made from it lacks that one made from a log has; empty for logs.
    pub const fn lacks(self) -> &'static str {
        match self {
            Self::PgreplayGo => {
                "durations, errors, names of statements and portals, and cancels; \
                 whatever pgreplay-go could not parse is missing without a trace"
            }
            Self::Pgreplay => {
                "durations, errors, names of portals, application names and the time zone; \
                 COPY is blanked out"
            }
            _ => "",
        }
    }

    fn layer(self, settings: &Settings) -> Box<dyn Layer> {
        let bytes_max = settings.record_bytes_max;
        // An envelope is larger than what is in it, by escapes above all.
        let envelope_bytes_max = bytes_max.saturating_mul(2).saturating_add(ENVELOPE_BYTES);
        match self {
            Self::Cri => Box::new(Cri::new(envelope_bytes_max)),
            Self::Timestamps => Box::new(Stamped::new(envelope_bytes_max)),
            Self::Json => Box::new(Envelopes::new(envelope_bytes_max)),
            Self::Syslog => Box::new(Syslog::new(envelope_bytes_max, settings.calendar)),
            Self::JournalJson => Box::new(JournalJson::new(envelope_bytes_max)),
            Self::JournalExport => Box::new(JournalExport::new(envelope_bytes_max)),
            Self::PgreplayGo => Box::new(PgreplayGo::new(envelope_bytes_max)),
            Self::Pgreplay => Box::new(Pgreplay::new(envelope_bytes_max)),
        }
    }
}

/// Bytes of an envelope beside what is in it.
const ENVELOPE_BYTES: usize = 64 << 10;

/// What layers need to know beforehand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) record_bytes_max: usize,
    pub(crate) calendar: Calendar,
}

/// The layers that were found around a log.
#[derive(Debug, Default)]
pub(super) struct Chain {
    layers: Vec<Box<dyn Layer>>,
    wrappings: Vec<Envelope>,
    /// The beginning of what is inside, while it may be wrapped once more.
    sample: Option<Vec<u8>>,
}

/// Wrappings in wrappings that are taken off: an operator's JSON in a container's log in a cloud's.
const LAYERS_MAX: usize = 4;

/// Bytes that a wrapping is told from.
const SAMPLE_BYTES: usize = 32 << 10;

impl Chain {
    /// Nothing was read yet.
    pub(super) fn new() -> Self {
        Self { sample: Some(Vec::new()), ..Self::default() }
    }

    /// Nothing was read yet, and it is known what is around the log: this and nothing more.
    pub(super) fn expecting(wrapping: Envelope, settings: &Settings) -> Self {
        let layers = vec![wrapping.layer(settings)];
        Self { layers, wrappings: vec![wrapping], sample: None }
    }

    /// What was taken off so far, from the outside.
    pub(super) fn wrappings(&self) -> &[Envelope] {
        &self.wrappings
    }

    /// Whether bytes pass as they are.
    pub(super) fn is_plain(&self) -> bool {
        self.layers.is_empty() && self.sample.is_none()
    }

    /// What stands in front of the server's own prefix.
    pub(super) fn added_prefix(&self) -> Option<&'static str> {
        self.layers.iter().find_map(|layer| layer.added_prefix())
    }

    /// Takes the next bytes of the file, and what is known of those to come; what is inside of them
    /// is appended to `found`.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        closing: Closing,
        settings: &Settings,
        found: &mut Found,
    ) {
        let inside = self.through(0, bytes.to_vec(), closing, found);
        self.settle(inside, closing, settings, found);
    }

    /// Sends bytes through the layers from `first` on.
    fn through(
        &mut self,
        first: usize,
        bytes: Vec<u8>,
        closing: Closing,
        found: &mut Found,
    ) -> Vec<u8> {
        let kept = std::mem::replace(&mut found.inside, bytes);
        for layer in &mut self.layers[first..] {
            let outside = std::mem::take(&mut found.inside);
            layer.feed(&outside, found);
            match closing {
                Closing::Open => {}
                Closing::Idle => layer.idle(found),
                Closing::End => layer.finish(found),
            }
        }
        std::mem::replace(&mut found.inside, kept)
    }

    /// Looks for a further wrapping as long as that is open, then hands over what is inside.
    fn settle(
        &mut self,
        mut inside: Vec<u8>,
        closing: Closing,
        settings: &Settings,
        found: &mut Found,
    ) {
        while let Some(mut sample) = self.sample.take() {
            sample.append(&mut inside);
            let is_enough = match closing {
                Closing::Open => sample.len() >= SAMPLE_BYTES,
                Closing::Idle => sample.contains(&b'\n'),
                Closing::End => true,
            };
            let wrapping = detect(&sample, settings.calendar);
            match wrapping.filter(|_| is_enough && self.layers.len() < LAYERS_MAX) {
                Some(wrapping) => {
                    self.layers.push(wrapping.layer(settings));
                    self.wrappings.push(wrapping);
                    inside = self.through(self.layers.len() - 1, sample, closing, found);
                    self.sample = Some(Vec::new());
                    if inside.is_empty() {
                        return;
                    }
                }
                None if is_enough => inside = sample,
                None => {
                    self.sample = Some(sample);
                    return;
                }
            }
        }
        found.inside.append(&mut inside);
    }
}

/// What a log that begins with `sample` is wrapped in, if in anything.
pub(super) fn detect(sample: &[u8], calendar: Calendar) -> Option<Envelope> {
    let start = sample.iter().position(|byte| !byte.is_ascii_whitespace() && *byte != b'\x1e');
    match sample.get(start?..)? {
        [b'{' | b'[', ..] => of_objects(sample),
        _ if pgreplay::is_replay_file(sample) => Some(Envelope::Pgreplay),
        _ => of_lines(sample, calendar),
    }
}

fn of_objects(sample: &[u8]) -> Option<Envelope> {
    let mut found = None;
    let mut objects = Objects::new(sample.len());
    let mut seen = 0;
    objects.feed(sample, |object, _| {
        if let (Ok(object), None, true) = (object, found, seen < OBJECTS_MAX) {
            seen += 1;
            found = of_object(object);
        }
    });
    found
}

/// Objects and lines that are looked at.
const OBJECTS_MAX: usize = 20;
const LINES_MAX: usize = 50;

fn of_object(object: &[u8]) -> Option<Envelope> {
    let has = |name: &[u8]| members(object).any(|(known, _)| known == name);
    if has(b"error_severity") {
        return None;
    }
    if has(b"MESSAGE") && has(b"__REALTIME_TIMESTAMP") {
        return Some(Envelope::JournalJson);
    }
    if pgreplay_go::is_item(object) {
        return Some(Envelope::PgreplayGo);
    }
    envelopes::open(object, 0, &mut Vec::new()).map(|_| Envelope::Json)
}

/// Wrappings of lines are told by most of the first lines: each has its header on every line.
fn of_lines(sample: &[u8], calendar: Calendar) -> Option<Envelope> {
    let is_export =
        sample.starts_with(b"__CURSOR=") || sample.starts_with(b"__REALTIME_TIMESTAMP=");
    if is_export {
        return Some(Envelope::JournalExport);
    }
    let mut lines = 0;
    let mut counts = [0; 3];
    // A last line that is cut off counts only if there is no other.
    let whole = memchr::memrchr(b'\n', sample).map_or(sample, |end| &sample[..end]);
    for line in whole.split(|byte| *byte == b'\n') {
        if line.is_empty() || line.starts_with(b"\t") || line.starts_with(b"-- ") {
            continue;
        }
        lines += 1;
        counts[0] += usize::from(split_cri(line).is_some());
        counts[1] += usize::from(Header::split(line, calendar).is_some());
        counts[2] += usize::from(split_stamped(line).is_some());
        if lines == LINES_MAX {
            break;
        }
    }
    let kinds = [Envelope::Cri, Envelope::Syslog, Envelope::Timestamps];
    kinds.into_iter().zip(counts).find(|(_, count)| count * 2 > lines).map(|(kind, _)| kind)
}

#[cfg(test)]
mod tests;
