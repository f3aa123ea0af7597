//! Files of the cache warmer: images, and contrib/pg_prewarm's autoprewarm.blocks.

use std::collections::BTreeMap;

use howdah_warm::{
    CacheImage, autoprewarm,
    image::{
        CachedFork, CachedPage, Fork, ImageOrigin, KeyedRow, QualifiedName, Relation, RelationFile,
        RelationName, RowKeys,
    },
};

use super::Shape;

/// The magic bytes of an image, its version, and boundary values.
pub const WORDS: &[&[u8]] = &[
    b"HOWDAHCI\x01\0\0\0",
    b"\x28\xb5\x2f\xfd",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x04",
    b"\0",
    b"public",
];

/// Fragments of autoprewarm.blocks.
pub const BLOCKS_WORDS: &[&[u8]] =
    &[b"<<1>>\n", b"<<", b">>", b",", b"\n", b"0,1664,1260,0,0\n", b"4294967295", b"4294967296"];

/// Reads the input as an image file; damaged ones must be refused.
pub fn file(input: &[u8]) -> Shape {
    read(CacheImage::parse(input))
}

/// Reads the input as the contents of an image with a valid checksum, and checks the invariants of
/// images that are accepted.
pub fn body(input: &[u8]) -> Shape {
    let mut bytes = b"HOWDAHCI\x01\0\0\0".to_vec();
    bytes.extend((input.len() as u64).to_le_bytes());
    bytes.extend(xxhash_rust::xxh3::xxh3_64(input).to_le_bytes());
    bytes.extend(zstd::encode_all(input, 1).expect("memory takes what is written"));
    read(CacheImage::parse(&bytes))
}

fn read(parsed: Result<CacheImage, howdah_warm::image::BodyError>) -> Shape {
    let image = match parsed {
        Ok(image) => image,
        // The message without its numbers.
        Err(error) => {
            let text: String =
                error.to_string().chars().filter(|char| !char.is_ascii_digit()).collect();
            return Shape::of((false, text.len().min(60)));
        }
    };
    for fork in image.relations.iter().flat_map(|relation| &relation.forks) {
        let blocks: Vec<_> = fork.pages.iter().map(|page| page.block).collect();
        assert!(blocks.is_sorted_by(|a, b| a < b), "blocks ascend, each once");
        assert_eq!(blocks.len(), fork.pages.len());
    }
    let mut blocks = Vec::new();
    let written = autoprewarm::write(&image, None, &mut blocks).expect("memory takes it");
    assert!(written <= image.page_count());
    Shape::of((true, image.relations.len().min(9), image.page_count().min(9)))
}

/// The unpacked contents of the images below.
pub fn body_seeds() -> Vec<Vec<u8>> {
    file_seeds().iter().filter_map(|file| zstd::decode_all(file.get(HEAD_BYTES..)?).ok()).collect()
}

/// Bytes before the compressed part of a file.
const HEAD_BYTES: usize = 28;

/// Image files as they are saved.
pub fn file_seeds() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    [0, 1, 40]
        .into_iter()
        .map(|pages| {
            let path = folder.path().join("image");
            image(pages).save(&path, Default::default()).expect("it can be written");
            std::fs::read(path).expect("it was just written")
        })
        .collect()
}

fn image(pages: u32) -> CacheImage {
    let name = |name: &str| QualifiedName { schema: "public".to_owned(), name: name.to_owned() };
    let page = |at| CachedPage { block: at * 3 / 2, usage: (at % 6) as u8, is_dirty: at % 5 == 0 };
    let fork = |fork| CachedFork { fork, length: Some(100), pages: (0..pages).map(page).collect() };
    let relation = |filenode, name| Relation {
        file: RelationFile { database: 5, tablespace: 1663, filenode },
        name,
        is_logged: filenode % 2 == 0,
        forks: vec![fork(Fork::Main), fork(Fork::VisibilityMap)],
        keys: (filenode == 16_384).then(|| RowKeys {
            columns: vec!["id".to_owned()],
            rows: (0..20)
                .map(|block| KeyedRow { block, values: vec![format!("key {block}")] })
                .collect(),
        }),
    };
    CacheImage {
        origin: ImageOrigin {
            server_version: 150_018,
            system_identifier: u64::MAX,
            page_bytes: 8192,
            buffers: 4096,
            taken_at_us: 1_795_000_000_000_000,
            source: howdah_warm::image::ImageSource::Memory,
        },
        databases: BTreeMap::from([(5, "shop".to_owned())]),
        relations: vec![
            relation(16_384, Some(RelationName::Own(name("orders")))),
            relation(16_385, Some(RelationName::Toast(name("orders")))),
            relation(16_390, None),
        ],
    }
}

/// Reads autoprewarm.blocks, and checks that the blocks survive being written and read again.
pub fn blocks(input: &[u8]) -> Shape {
    let image = match autoprewarm::read(input, 8192, 0) {
        Ok(image) => image,
        Err(error) => {
            let text = error.to_string();
            assert!(text.len() < 1000, "{text}");
            return Shape::of((
                false,
                text.chars().filter(char::is_ascii_alphabetic).count().min(60),
            ));
        }
    };
    let mut out = Vec::new();
    let count = autoprewarm::write(&image, None, &mut out).expect("memory takes it");
    assert_eq!(count, image.page_count());
    let again = autoprewarm::read(&*out, 8192, 0).expect("what we write can be read");
    assert_eq!(again, image);
    Shape::of((true, image.relations.len().min(9), count.min(9)))
}
