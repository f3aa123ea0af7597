//! Detects the envelopes around a log and removes them, layer by layer.

use serde::Serialize;

use super::{
    container::{Cri, TimestampedLines, split_cri, split_timestamp},
    csv_export::{self, CsvExport},
    journal::{JournalExport, JournalJson},
    json::{ObjectSplitter, members},
    json_envelopes::{self, JsonEnvelopes},
    layer::{Layer, LayerOutput},
    pgreplay::{self, Pgreplay},
    pgreplay_go::{self, PgreplayGo},
    stamp::Calendar,
    syslog::{SyslogHeader, SyslogLayer},
};
use crate::InputState;

/// A format in which services and tools wrap the lines of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Envelope {
    /// Lines of a container runtime for Kubernetes: time, stream, tag.
    Cri,
    /// Lines with a time in ISO 8601 in front: `kubectl logs --timestamps`, CloudWatch's export to
    /// S3.
    Timestamps,
    /// JSON of a container runtime, a cloud or CloudNativePG.
    Json,
    /// syslog files, `journalctl`'s own lines and Heroku's logs.
    Syslog,
    /// The journal as JSON: `journalctl -o json` and its variants.
    JournalJson,
    /// `journalctl -o export`.
    JournalExport,
    /// Rows of a csvlog that a spreadsheet or a data warehouse has written again.
    CsvExport,
    /// Items of pgreplay-go, which are not a log.
    PgreplayGo,
    /// A replay file of pgreplay, which is not a log.
    Pgreplay,
}

impl Envelope {
    /// Every envelope, in the order of declaration.
    pub const ALL: [Self; 9] = [
        Self::Cri,
        Self::Timestamps,
        Self::Json,
        Self::Syslog,
        Self::JournalJson,
        Self::JournalExport,
        Self::CsvExport,
        Self::PgreplayGo,
        Self::Pgreplay,
    ];

    /// Returns the name of the envelope, as a phrase for display.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cri => "a container log (CRI)",
            Self::Timestamps => "lines with timestamps",
            Self::Json => "JSON envelopes",
            Self::Syslog => "syslog",
            Self::JournalJson => "the journal, as JSON",
            Self::JournalExport => "the journal, exported",
            Self::CsvExport => "a csvlog rewritten by another tool",
            Self::PgreplayGo => "pgreplay-go items",
            Self::Pgreplay => "a pgreplay replay file",
        }
    }

    /// Returns the information that a capture made from this input lacks, compared with one made
    /// from a log; empty for logs.
    pub const fn limitation(self) -> &'static str {
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

    fn layer(self, settings: &EnvelopeOptions) -> Box<dyn Layer> {
        let bytes_max = settings.record_bytes_max;
        // An envelope is larger than its contents, mainly because of escapes.
        let envelope_bytes_max = bytes_max.saturating_mul(2).saturating_add(ENVELOPE_BYTES);
        match self {
            Self::Cri => Box::new(Cri::new(envelope_bytes_max)),
            Self::Timestamps => Box::new(TimestampedLines::new(envelope_bytes_max)),
            Self::Json => Box::new(JsonEnvelopes::new(envelope_bytes_max)),
            Self::Syslog => Box::new(SyslogLayer::new(envelope_bytes_max, settings.calendar)),
            Self::JournalJson => Box::new(JournalJson::new(envelope_bytes_max)),
            Self::JournalExport => Box::new(JournalExport::new(envelope_bytes_max)),
            Self::CsvExport => Box::new(CsvExport::new(envelope_bytes_max)),
            Self::PgreplayGo => Box::new(PgreplayGo::new(envelope_bytes_max)),
            Self::Pgreplay => Box::new(Pgreplay::new(envelope_bytes_max)),
        }
    }
}

/// Maximum size of an envelope without its contents, in bytes.
const ENVELOPE_BYTES: usize = 64 << 10;

/// Options that all layers share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnvelopeOptions {
    pub(crate) record_bytes_max: usize,
    pub(crate) calendar: Calendar,
}

/// A chain of layers, outermost first, that removes the envelopes around a log and detects further
/// ones.
#[derive(Debug, Default)]
pub(super) struct LayerChain {
    layers: Vec<Box<dyn Layer>>,
    envelopes: Vec<Envelope>,
    /// The beginning of the contents, while they may have a further envelope.
    sample: Option<Vec<u8>>,
}

/// Maximum nesting of envelopes: for example an operator's JSON in a container's log in a cloud's
/// log.
const LAYERS_MAX: usize = 4;

/// The mark that some editors and shells put in front of a file, in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Number of bytes at the front that are examined to detect an envelope.
const SAMPLE_BYTES: usize = 32 << 10;

impl LayerChain {
    /// Creates a chain that detects all envelopes.
    pub(super) fn new() -> Self {
        Self { sample: Some(Vec::new()), ..Self::default() }
    }

    /// Creates a chain for exactly one envelope.
    pub(super) fn expecting(envelope: Envelope, settings: &EnvelopeOptions) -> Self {
        let layers = vec![envelope.layer(settings)];
        Self { layers, envelopes: vec![envelope], sample: None }
    }

    /// Returns the envelopes removed so far, outermost first.
    pub(super) fn envelopes(&self) -> &[Envelope] {
        &self.envelopes
    }

    /// Whether bytes are passed through unchanged.
    pub(super) fn is_passthrough(&self) -> bool {
        self.layers.is_empty() && self.sample.is_none()
    }

    /// Returns the prefix added in front of the server's own prefix, if any layer added one.
    pub(super) fn added_prefix(&self) -> Option<&'static str> {
        self.layers.iter().find_map(|layer| layer.added_prefix())
    }

    /// Reads the next bytes of the file and appends their contents to `output`. `state` is the
    /// state of the input after these bytes.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        state: InputState,
        settings: &EnvelopeOptions,
        output: &mut LayerOutput,
    ) {
        let contents = self.feed_layers(0, bytes.to_vec(), state, output);
        self.detect_next(contents, state, settings, output);
    }

    /// Passes bytes through the layers from `first` on.
    fn feed_layers(
        &mut self,
        first: usize,
        bytes: Vec<u8>,
        state: InputState,
        output: &mut LayerOutput,
    ) -> Vec<u8> {
        let saved = std::mem::replace(&mut output.log, bytes);
        for layer in &mut self.layers[first..] {
            let outside = std::mem::take(&mut output.log);
            layer.feed(&outside, output);
            match state {
                InputState::Open => {}
                InputState::Idle => layer.idle(output),
                InputState::End => layer.finish(output),
            }
        }
        std::mem::replace(&mut output.log, saved)
    }

    /// Detects a further envelope while there may be one, then emits the contents.
    fn detect_next(
        &mut self,
        mut contents: Vec<u8>,
        state: InputState,
        settings: &EnvelopeOptions,
        output: &mut LayerOutput,
    ) {
        while let Some(mut sample) = self.sample.take() {
            sample.append(&mut contents);
            if self.layers.is_empty() && sample.starts_with(BYTE_ORDER_MARK) {
                sample.drain(..BYTE_ORDER_MARK.len());
            }
            let is_enough = match state {
                InputState::Open => sample.len() >= SAMPLE_BYTES,
                InputState::Idle => sample.contains(&b'\n'),
                InputState::End => true,
            };
            let envelope = detect(&sample, settings.calendar);
            match envelope.filter(|_| is_enough && self.layers.len() < LAYERS_MAX) {
                Some(envelope) => {
                    self.layers.push(envelope.layer(settings));
                    self.envelopes.push(envelope);
                    contents = self.feed_layers(self.layers.len() - 1, sample, state, output);
                    self.sample = Some(Vec::new());
                    if contents.is_empty() {
                        return;
                    }
                }
                None if is_enough => contents = sample,
                None => {
                    self.sample = Some(sample);
                    return;
                }
            }
        }
        output.log.append(&mut contents);
    }
}

/// Detects the envelope of a log that begins with `sample`, if any.
pub(super) fn detect(sample: &[u8], calendar: Calendar) -> Option<Envelope> {
    let start = sample.iter().position(|byte| !byte.is_ascii_whitespace() && *byte != b'\x1e');
    match sample.get(start?..)? {
        [b'{' | b'[', ..] => detect_in_objects(sample),
        _ if pgreplay::is_replay_file(sample) => Some(Envelope::Pgreplay),
        _ if csv_export::is_export(sample) => Some(Envelope::CsvExport),
        _ => detect_in_lines(sample, calendar),
    }
}

fn detect_in_objects(sample: &[u8]) -> Option<Envelope> {
    let mut envelope = None;
    let mut objects = ObjectSplitter::new(sample.len());
    let mut seen = 0;
    objects.feed(sample, |object, _| {
        if let (Ok(object), None, true) = (object, envelope, seen < OBJECTS_MAX) {
            seen += 1;
            envelope = detect_in_object(object);
        }
    });
    envelope
}

/// Maximum number of objects and lines that are examined.
const OBJECTS_MAX: usize = 20;
const LINES_MAX: usize = 50;

fn detect_in_object(object: &[u8]) -> Option<Envelope> {
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
    json_envelopes::open_envelope(object, 0, &mut Vec::new()).map(|_| Envelope::Json)
}

/// Detects an envelope of lines: the journal's export format by the first field, and others by the
/// majority of the first lines, because each line has a header.
fn detect_in_lines(sample: &[u8], calendar: Calendar) -> Option<Envelope> {
    let is_export =
        sample.starts_with(b"__CURSOR=") || sample.starts_with(b"__REALTIME_TIMESTAMP=");
    if is_export {
        return Some(Envelope::JournalExport);
    }
    let mut lines = 0;
    let mut counts = [0; 3];
    // Ignore an incomplete last line, unless it is the only line.
    let whole = memchr::memrchr(b'\n', sample).map_or(sample, |end| &sample[..end]);
    for line in whole.split(|byte| *byte == b'\n') {
        if line.is_empty() || line.starts_with(b"\t") || line.starts_with(b"-- ") {
            continue;
        }
        lines += 1;
        counts[0] += usize::from(split_cri(line).is_some());
        counts[1] += usize::from(SyslogHeader::split(line, calendar).is_some());
        counts[2] += usize::from(split_timestamp(line).is_some());
        if lines == LINES_MAX {
            break;
        }
    }
    let kinds = [Envelope::Cri, Envelope::Syslog, Envelope::Timestamps];
    kinds.into_iter().zip(counts).find(|(_, count)| count * 2 > lines).map(|(kind, _)| kind)
}

#[cfg(test)]
mod tests;
