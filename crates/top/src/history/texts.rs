//! Texts of a segment, each written once and then named by its number.

use std::{collections::HashMap, sync::Arc};

use super::bytes::{Damage, In, Out};

/// Most bytes that the texts of a segment have, for a reader: far more than a writer's segment has.
const BYTES_MAX: usize = 64 << 20;

/// Texts that were written.
#[derive(Debug, Default)]
pub(super) struct Written(HashMap<Arc<str>, i64>);

impl Written {
    /// The number of a text. One that is new is put to those that stand in front of the frame.
    pub(super) fn number(&mut self, text: &Arc<str>, fresh: &mut Vec<Arc<str>>) -> i64 {
        if let Some(number) = self.0.get(text) {
            return *number;
        }
        let number = i64::try_from(self.0.len()).unwrap_or(i64::MAX);
        self.0.insert(Arc::clone(text), number);
        fresh.push(Arc::clone(text));
        number
    }
}

/// Writes the texts that are new in a frame.
pub(super) fn put(out: &mut Out, fresh: &[Arc<str>]) {
    out.count(fresh.len());
    fresh.iter().for_each(|text| out.text(text));
}

/// Texts that were read.
#[derive(Debug, Default)]
pub(super) struct Read {
    texts: Vec<Arc<str>>,
    bytes: usize,
}

impl Read {
    /// Reads what [`put`] wrote.
    pub(super) fn take(&mut self, input: &mut In<'_>) -> Result<(), Damage> {
        for _ in 0..input.count(input.0.len())? {
            let text = input.text()?;
            // With what it costs to hold it.
            self.bytes += text.len() + 32;
            if self.bytes > BYTES_MAX {
                return Err(Damage::Size);
            }
            self.texts.push(text.into());
        }
        Ok(())
    }

    /// The text of that number, as it was written.
    pub(super) fn raw(&self, number: i64) -> Result<&Arc<str>, Damage> {
        let at = usize::try_from(number).map_err(|_| Damage::Reference)?;
        self.texts.get(at).ok_or(Damage::Reference)
    }

    /// The text of that number, on one line and safe to show.
    pub(super) fn word(&self, number: i64) -> Result<Arc<str>, Damage> {
        let text = self.raw(number)?;
        Ok(match howdah_collect::shown_line(text) {
            std::borrow::Cow::Borrowed(_) => Arc::clone(text),
            std::borrow::Cow::Owned(shown) => shown.into(),
        })
    }

    /// The same, for a slot that may have none.
    pub(super) fn slot(&self, slot: Option<i64>) -> Result<Option<Arc<str>>, Damage> {
        slot.map(|number| self.word(number)).transpose()
    }
}
