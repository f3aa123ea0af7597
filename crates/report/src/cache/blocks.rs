//! The blocks of a cache image: runs of adjacent pages with equal usage counts. They are written
//! while they are found, so an image of any size takes no more memory.

use std::io::{self, Write};

use howdah_warm::image::{CacheImage, CachedFork, Selection};
use serde::Serialize;

use super::relation_names;

/// A run of adjacent pages of a fork with the same usage count.
#[derive(Debug, Serialize)]
struct BlockRunRow<'a> {
    database: &'a str,
    relation: &'a str,
    fork: &'static str,
    first: u32,
    last: u32,
    usage: u8,
    /// Number of pages that were dirty.
    dirty: u32,
}

/// Writes the selected runs as a table. Relations are in the order of their files.
///
/// # Errors
///
/// `out` cannot be written.
pub fn write_table(
    out: &mut impl Write,
    image: &CacheImage,
    selection: &Selection,
) -> io::Result<()> {
    let [first, last, usage, dirty] = ["FIRST", "LAST", "USAGE", "DIRTY"];
    writeln!(out, "{first:>10} {last:>10} {usage:>5} {dirty:>6}  FORK  RELATION")?;
    for_each_run(image, selection, |run| {
        let BlockRunRow { database, relation, fork, first, last, usage, dirty } = run;
        writeln!(
            out,
            "{first:>10} {last:>10} {usage:>5} {dirty:>6}  {fork:<4}  {database} {relation}"
        )
    })
}

/// Writes the selected runs as JSON documents, one per line.
///
/// # Errors
///
/// `out` cannot be written.
pub fn write_lines(
    out: &mut impl Write,
    image: &CacheImage,
    selection: &Selection,
) -> io::Result<()> {
    for_each_run(image, selection, |run| {
        serde_json::to_writer(&mut *out, &run)?;
        writeln!(out)
    })
}

/// Writes the selected runs as one JSON document.
///
/// # Errors
///
/// `out` cannot be written.
pub fn write_document(
    out: &mut impl Write,
    image: &CacheImage,
    selection: &Selection,
) -> io::Result<()> {
    write!(out, "{{\"version\": 1, \"page_bytes\": {}, \"runs\": [", image.origin.page_bytes)?;
    let mut separator = "\n";
    for_each_run(image, selection, |run| {
        write!(out, "{separator}")?;
        separator = ",\n";
        Ok(serde_json::to_writer(&mut *out, &run)?)
    })?;
    writeln!(out, "\n]}}")
}

fn for_each_run(
    image: &CacheImage,
    selection: &Selection,
    mut write: impl FnMut(BlockRunRow<'_>) -> io::Result<()>,
) -> io::Result<()> {
    for relation in image.relations.iter().filter(|it| selection.selects(image, it)) {
        let (database, name) = relation_names(image, relation);
        for fork in &relation.forks {
            for_each_run_of_fork(fork, selection.min_usage, |first, last, usage, dirty| {
                let fork = fork.fork.name();
                let (database, relation) = (database.as_str(), name.as_str());
                write(BlockRunRow { database, relation, fork, first, last, usage, dirty })
            })?;
        }
    }
    Ok(())
}

fn for_each_run_of_fork(
    fork: &CachedFork,
    min_usage: u8,
    mut write: impl FnMut(u32, u32, u8, u32) -> io::Result<()>,
) -> io::Result<()> {
    let mut run: Option<(u32, u32, u8, u32)> = None;
    for page in fork.pages.iter().filter(|page| page.usage >= min_usage) {
        let is_dirty = u32::from(page.is_dirty);
        match &mut run {
            Some((_, last, usage, dirty))
                if last.checked_add(1) == Some(page.block) && *usage == page.usage =>
            {
                *last = page.block;
                *dirty += is_dirty;
            }
            _ => {
                if let Some((first, last, usage, dirty)) =
                    run.replace((page.block, page.block, page.usage, is_dirty))
                {
                    write(first, last, usage, dirty)?;
                }
            }
        }
    }
    run.map_or(Ok(()), |(first, last, usage, dirty)| write(first, last, usage, dirty))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use howdah_warm::image::{
        CachedPage, Fork, ImageOrigin, ImageSource, QualifiedName, Relation, RelationFile,
        RelationName,
    };

    use super::*;

    fn image() -> CacheImage {
        let page =
            |&(block, usage, is_dirty): &(u32, u8, bool)| CachedPage { block, usage, is_dirty };
        let pages = [(3, 5, true), (4, 5, false), (5, 2, true), (9, 2, false), (10, 2, true)];
        CacheImage {
            origin: ImageOrigin {
                server_version: 170_000,
                system_identifier: 1,
                page_bytes: 8192,
                buffers: 0,
                taken_at_us: 0,
                source: ImageSource::Memory,
            },
            databases: BTreeMap::from([(5, "shop".to_owned())]),
            relations: vec![Relation {
                keys: None,
                file: RelationFile { database: 5, tablespace: 1663, filenode: 7 },
                name: Some(RelationName::Own(QualifiedName {
                    schema: "public".into(),
                    name: "orders".into(),
                })),
                is_logged: true,
                forks: vec![CachedFork {
                    fork: Fork::Main,
                    length: None,
                    pages: pages.iter().map(page).collect(),
                }],
            }],
        }
    }

    #[test]
    fn adjacent_pages_with_equal_usage_are_one_run() {
        let mut out = Vec::new();
        write_table(&mut out, &image(), &Selection::default()).unwrap();
        let expected = "     FIRST       LAST USAGE  DIRTY  FORK  RELATION
         3          4     5      1  main  shop public.orders
         5          5     2      1  main  shop public.orders
         9         10     2      1  main  shop public.orders
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn documents_contain_the_selected_runs() {
        let selection = Selection { min_usage: 3, ..Selection::default() };
        let (mut lines, mut document) = (Vec::new(), Vec::new());
        write_lines(&mut lines, &image(), &selection).unwrap();
        write_document(&mut document, &image(), &selection).unwrap();
        let line: serde_json::Value = serde_json::from_slice(&lines).unwrap();
        assert_eq!(
            (&line["first"], &line["last"], &line["dirty"]),
            (&3.into(), &4.into(), &1.into())
        );
        let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
        assert_eq!(document["runs"], serde_json::json!([line]));
        let mut empty = Vec::new();
        write_document(&mut empty, &image(), &Selection { min_usage: 6, ..selection }).unwrap();
        let empty: serde_json::Value = serde_json::from_slice(&empty).unwrap();
        assert_eq!(empty["runs"], serde_json::json!([]));
    }
}
