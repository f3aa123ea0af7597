//! The texts of a segment. Each is written once and then referenced by number.

use std::{collections::HashMap, sync::Arc};

use howdah_codec::{ByteReader, ByteWriter as _};

use super::error::CorruptFrame;

/// Maximum total size of a segment's texts when reading: far more than a writer produces.
const SEGMENT_TEXT_BYTES_MAX: usize = 64 << 20;

/// The texts written so far in a segment, with their numbers.
#[derive(Debug, Default)]
pub(super) struct TextWriter(HashMap<Arc<str>, i64>);

impl TextWriter {
    /// Returns the number of a text. A new text is appended to `new_texts`, which is written at the
    /// start of the frame.
    pub(super) fn number(&mut self, text: &Arc<str>, new_texts: &mut Vec<Arc<str>>) -> i64 {
        if let Some(number) = self.0.get(text) {
            return *number;
        }
        let number = i64::try_from(self.0.len()).unwrap_or(i64::MAX);
        self.0.insert(Arc::clone(text), number);
        new_texts.push(Arc::clone(text));
        number
    }
}

/// Encodes the new texts of a frame.
pub(super) fn encode(out: &mut Vec<u8>, new_texts: &[Arc<str>]) {
    out.write_count(new_texts.len());
    new_texts.iter().for_each(|text| out.write_text(text));
}

/// Reads a text that is not shared, and sanitizes it to one line.
pub(super) fn read_line(input: &mut ByteReader<'_>) -> Result<Arc<str>, CorruptFrame> {
    Ok(howdah_collect::sanitized_line(input.text()?).into())
}

/// The texts of a segment that were read so far, by number.
#[derive(Debug, Default)]
pub(super) struct TextReader {
    texts: Vec<Arc<str>>,
    bytes: usize,
}

impl TextReader {
    /// Decodes the output of [`encode`].
    pub(super) fn decode(&mut self, input: &mut ByteReader<'_>) -> Result<(), CorruptFrame> {
        for _ in 0..input.count()? {
            let text = input.text()?;
            // Includes the approximate overhead of a stored text.
            self.bytes += text.len() + 32;
            if self.bytes > SEGMENT_TEXT_BYTES_MAX {
                return Err(CorruptFrame::Size);
            }
            self.texts.push(text.into());
        }
        Ok(())
    }

    /// Returns the text with this number, unchanged.
    pub(super) fn raw(&self, number: i64) -> Result<&Arc<str>, CorruptFrame> {
        let at = usize::try_from(number).map_err(|_| CorruptFrame::Reference)?;
        self.texts.get(at).ok_or(CorruptFrame::Reference)
    }

    /// Returns the text with this number, sanitized to one line.
    pub(super) fn line(&self, number: i64) -> Result<Arc<str>, CorruptFrame> {
        let text = self.raw(number)?;
        Ok(match howdah_collect::sanitized_line(text) {
            std::borrow::Cow::Borrowed(_) => Arc::clone(text),
            std::borrow::Cow::Owned(shown) => shown.into(),
        })
    }

    /// Returns the text with the number in an optional field, sanitized to one line.
    pub(super) fn optional_line(
        &self,
        slot: Option<i64>,
    ) -> Result<Option<Arc<str>>, CorruptFrame> {
        slot.map(|number| self.line(number)).transpose()
    }
}
