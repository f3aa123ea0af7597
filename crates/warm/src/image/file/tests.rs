//! Tests with images that are written, read back, truncated and damaged.

use std::collections::BTreeMap;

use super::*;
use crate::image::{
    CachedFork, CachedPage, CachedPages, Fork, ImageOrigin, ImageSource, QualifiedName, Relation,
    RelationFile, RelationName,
};
use crate::image::{KeyedRow, RowKeys};

fn origin() -> ImageOrigin {
    ImageOrigin {
        server_version: 150_018,
        system_identifier: 7_412_345_678_901_234_567,
        page_bytes: 8192,
        buffers: 16_384,
        taken_at_us: 1_795_176_000_000_000,
        source: ImageSource::Memory,
    }
}

fn relation(
    filenode: u32,
    name: Option<RelationName>,
    pages: impl Iterator<Item = CachedPage>,
) -> Relation {
    Relation {
        file: RelationFile { database: 5, tablespace: 1663, filenode },
        name,
        is_logged: filenode.is_multiple_of(2),
        forks: vec![CachedFork { fork: Fork::Main, length: Some(40_000), pages: pages.collect() }],
        keys: None,
    }
}

fn named(name: &str) -> QualifiedName {
    QualifiedName { schema: "public".into(), name: name.into() }
}

/// An image as after a mixed load: scattered pages, all usage counts.
fn image() -> CacheImage {
    let scattered = (0..38_000_u32).filter(|block| block.wrapping_mul(2_654_435_761) % 7 < 5);
    let mixed = scattered.map(|block| CachedPage {
        block,
        usage: (block.wrapping_mul(2_246_822_519) >> 13) as u8 % 6,
        is_dirty: block % 11 == 0,
    });
    let whole = (0..5000).map(|block| CachedPage { block, usage: 1, is_dirty: false });
    CacheImage {
        origin: origin(),
        databases: BTreeMap::from([(5, "shop".to_owned())]),
        relations: vec![
            relation(16_384, Some(RelationName::Own(named("orders"))), mixed),
            relation(16_390, Some(RelationName::ToastIndex(named("orders"))), whole),
            relation(16_391, None, std::iter::empty()),
        ],
    }
}

#[test]
fn saved_image_can_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    image().save(&path, Generations(0)).unwrap();
    assert_eq!(CacheImage::open(&path).unwrap(), image());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn mixed_load_takes_less_than_one_byte_per_page() {
    let image = image();
    let bytes = image.encode(Path::new("here")).unwrap();
    assert!((bytes.len() as u64) < image.page_count(), "{} {}", bytes.len(), image.page_count());
}

#[test]
fn requested_generations_are_retained() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    for buffers in 1..=5 {
        let mut image = image();
        image.origin.buffers = buffers;
        image.save(&path, Generations(2)).unwrap();
    }
    let buffers = |name: &str| CacheImage::open(dir.path().join(name)).unwrap().origin.buffers;
    assert_eq!([buffers("cache"), buffers("cache.1"), buffers("cache.2")], [5, 4, 3]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn truncated_image_is_detected_at_any_length() {
    let bytes = image().encode(Path::new("here")).unwrap();
    for end in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        let error = CacheImage::parse(&bytes[..end]).unwrap_err();
        let is_detected = matches!(error, BodyError::NotAnImage | BodyError::Truncated);
        assert!(is_detected, "cut at {end}: {error}");
    }
}

#[test]
fn flipped_bit_is_detected_anywhere() {
    let bytes = image().encode(Path::new("here")).unwrap();
    for at in (0..bytes.len()).step_by(41) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 4;
        assert!(CacheImage::parse(&bytes).is_err(), "flipped at {at}");
    }
}

#[test]
fn keys_of_rows_are_saved() {
    let mut image = image();
    let row = |block: u32| KeyedRow { block, values: vec![block.to_string(), "ä".to_owned()] };
    let columns = vec!["id".to_owned(), "name".to_owned()];
    image.relations[0].keys = Some(RowKeys { columns, rows: [0, 7, 7, 30_000].map(row).into() });
    let bytes = image.encode(Path::new("here")).unwrap();
    assert_eq!(CacheImage::parse(&bytes).unwrap(), image);
}

#[test]
fn file_of_version_1_is_read() {
    let mut image = image();
    image.relations.truncate(1);
    // Version 2 has added a count of key columns to each relation, at its end.
    let body = image.to_bytes();
    let (columns, body) = body.split_last().unwrap();
    assert_eq!(*columns, 0);
    assert_eq!(CacheImage::from_bytes(body, 1).unwrap(), image);
    assert!(CacheImage::from_bytes(body, 2).is_err());
}

#[test]
fn later_format_version_is_rejected() {
    let mut bytes = image().encode(Path::new("here")).unwrap();
    bytes[8] = 9;
    let error = CacheImage::parse(&bytes).unwrap_err();
    assert!(matches!(error, BodyError::Version { found: 9, known: 2 }), "{error}");
}

#[test]
fn huge_body_length_is_rejected_before_allocation() {
    let mut bytes = image().encode(Path::new("here")).unwrap();
    bytes[12..20].copy_from_slice(&(1_u64 << 45).to_le_bytes());
    assert!(matches!(CacheImage::parse(&bytes), Err(BodyError::TooLarge { .. })));
}

#[test]
fn failed_write_preserves_the_old_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    image().save(&path, Generations(0)).unwrap();
    // A directory at the path of the temporary file makes saving fail.
    fs::create_dir(dir.path().join("cache.tmp")).unwrap();
    assert!(matches!(image().save(&path, Generations(1)), Err(ImageError::File(_))));
    assert_eq!(CacheImage::open(&path).unwrap(), image());
    assert_eq!(CachedPages::default().len(), 0);
}

#[test]
fn failed_rename_removes_the_temporary_file() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let error = image().save(&folder, Generations(0)).unwrap_err();
    assert!(error.to_string().contains("renamed into place"), "{error}");
    let left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["folder"]);
}
