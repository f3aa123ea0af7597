//! Options that select a part of an image.

use howdah_warm::{
    CacheImage,
    image::{DatabasePattern, NoMatch, RelationPattern, SelectedImage, Selection},
};

use crate::errors;

/// Options that select a part of an image. Flatten into a command's `Args`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct SelectionArgs {
    /// Select only pages of these databases; repeatable
    ///
    /// A pattern as in psql: `*` and `?` are wildcards, and upper case needs double quotes. Shared
    /// catalogs belong to no database and are left out.
    #[arg(long, value_name = "PATTERN")]
    database: Vec<String>,
    /// Select only these relations: orders, 'sales.*', 'orders*'; repeatable
    ///
    /// A pattern as in psql, like those of `howdah warm table`. The TOAST table and its index are
    /// selected with their table. The image does not record to which table other indexes belong,
    /// so they have to match by their own names: 'orders*' selects orders and orders_pkey. System
    /// catalogs match only if their schema is named: 'pg_catalog.*'.
    #[arg(long, value_name = "PATTERN")]
    relation: Vec<String>,
    /// Leave these relations out, even if --relation selects them; repeatable
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Select only pages with at least this usage count, 0 to 5
    #[arg(long, value_name = "COUNT", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=5))]
    min_usage: u8,
}

impl SelectionArgs {
    pub(super) fn selection(&self) -> Selection {
        let patterns =
            |list: &[String]| list.iter().map(|it| RelationPattern::new(it)).collect::<Vec<_>>();
        Selection {
            databases: self.database.iter().map(|it| DatabasePattern::new(it)).collect(),
            relations: patterns(&self.relation),
            excluded: patterns(&self.exclude),
            min_usage: self.min_usage,
        }
    }

    /// Returns the selection, if its patterns match something in the image.
    pub(super) fn check(&self, image: &CacheImage) -> anyhow::Result<Selection> {
        let selection = self.selection();
        selection.check_patterns(image).map_err(no_match)?;
        Ok(selection)
    }

    /// Returns the selected part of an image. A pattern without a match becomes a usage error.
    pub(super) fn select(&self, image: CacheImage) -> anyhow::Result<SelectedImage> {
        let selection = self.selection();
        if selection.is_everything() {
            return Ok(SelectedImage { image, not_selected: 0 });
        }
        let selected = selection.select(&image).map_err(no_match)?;
        if selected.image.page_count() == 0 && selected.not_selected > 0 {
            return Err(errors::with_hint(
                errors::wrong_usage("the selection contains no page of the image"),
                "each pattern matches something, but nothing matches all of them",
            ));
        }
        Ok(selected)
    }
}

/// Adds a hint with similar names.
fn no_match(error: NoMatch) -> anyhow::Error {
    let NoMatch { kind, near_names, is_nameless, .. } = &error;
    let hint = match (is_nameless, near_names.is_empty()) {
        (true, _) => format!("the image contains no {kind} names"),
        (false, true) => {
            "`howdah warm info --limit 0` lists them; names in upper case need double quotes"
                .to_owned()
        }
        (false, false) => format!("the image has {}", near_names.join(", ")),
    };
    errors::with_hint(errors::wrong_usage(error), hint)
}
