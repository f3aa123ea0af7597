//! [`ScrapeCursor`]: the position of a scrape that is rendered in pieces.
//!
//! Between two pieces the table is not locked, so series may be added and removed. The next piece
//! continues after the name and labels of the last series, so that no series is exposed twice, and
//! none is missing that existed all the time. All samples of one series are in the same piece.

use std::borrow::Cow;

use super::{
    families::{FamilyTable, PrometheusFamily, SeriesView},
    series_names::FamilyType,
};

/// Maximum number of series in a run.
const RUN_SERIES_MAX: usize = 256;

/// The position of a scrape between two pieces.
#[derive(Debug, Default)]
pub(super) struct ScrapeCursor {
    position: usize,
    /// The generation of the table in which `position` is valid.
    generation: u64,
    /// Name and labels of the last series.
    last: Option<(String, String)>,
}

/// Consecutive series of one family.
pub(super) struct FamilyRun<'t> {
    table: &'t FamilyTable,
    family: &'t PrometheusFamily,
    pub(super) name: Cow<'t, str>,
    /// Whether an earlier run had series of the same family.
    pub(super) is_continued: bool,
    positions: std::ops::Range<usize>,
}

impl ScrapeCursor {
    /// Passes the next runs to `write` until it returns false, because the piece is large enough.
    /// Returns whether there may be more.
    pub(super) fn advance(
        &mut self,
        table: &FamilyTable,
        mut write: impl FnMut(&FamilyRun<'_>) -> bool,
    ) -> bool {
        let mut last_name = None;
        if let Some((name, labels)) = self.last.take() {
            if self.generation != table.generation() {
                self.position = table.position_after(&name, &labels);
            }
            last_name = Some(name);
        }
        self.generation = table.generation();
        while let Some((family, end)) = table.run_at(self.position, RUN_SERIES_MAX) {
            let name = table.name(family);
            let is_continued = last_name.as_deref() == Some(&*name);
            let positions = self.position..end;
            let run = FamilyRun { table, family, name, is_continued, positions };
            let goes_on = write(&run);
            self.position = end;
            let name = run.name.into_owned();
            if !goes_on {
                let labels = table.series_at(end - 1).labels.to_owned();
                self.last = Some((name, labels));
                return true;
            }
            last_name = Some(name);
        }
        false
    }
}

impl<'t> FamilyRun<'t> {
    /// Returns the `# HELP` text of the family.
    pub(super) fn help(&self) -> Cow<'t, str> {
        self.table.help(self.family)
    }

    /// Returns the type of the family.
    pub(super) fn shape(&self) -> FamilyType {
        self.family.shape
    }

    /// Returns the series, sorted by labels.
    pub(super) fn series(&self) -> impl Iterator<Item = SeriesView<'t>> {
        self.positions.clone().map(|position| self.table.series_at(position))
    }
}
