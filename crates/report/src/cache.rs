//! Renders cache images, and advice on the size of a cache: tables for terminals, documents for
//! programs.

pub mod advice;
pub mod blocks;
pub mod image;

use howdah_warm::image::{CacheImage, Relation};

use crate::text;

/// Formats the size of an image and of its cache: `512 pages, 4.00 MiB of 128.00 MiB buffers`.
pub fn image_size(image: &CacheImage) -> String {
    let pages = image.page_count();
    let of = match image.origin.buffers {
        0 => String::new(),
        buffers => format!(" of {} buffers", page_bytes(image, buffers.into())),
    };
    format!("{pages} pages, {}{of}", page_bytes(image, pages))
}

/// Formats the size of this number of pages.
fn page_bytes(image: &CacheImage, pages: u64) -> String {
    text::bytes(pages * u64::from(image.origin.page_bytes))
}

/// Returns the database and name of a relation, or placeholders if they are not known.
fn relation_names(image: &CacheImage, relation: &Relation) -> (String, String) {
    let file = relation.file;
    let database = match (file.database, image.database_name(file.database)) {
        (_, Some(name)) => name.to_owned(),
        (0, None) => "(shared)".to_owned(),
        (oid, None) => format!("(database {oid})"),
    };
    let name = match &relation.name {
        Some(name) => name.to_string(),
        None => format!("(file {} in tablespace {})", file.filenode, file.tablespace),
    };
    (database, name)
}
