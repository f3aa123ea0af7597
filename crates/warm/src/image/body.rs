//! Encodes and decodes the body of an image file, before compression.
//!
//! Numbers and texts are encoded by [`howdah_codec`]. The order is fixed (databases by oid,
//! relations by file, forks by number, pages by block), so equal images have equal bytes.

use std::collections::BTreeMap;

use howdah_codec::{ByteReader, ByteWriter as _, CodecError};

use super::{
    BodyError, CacheImage, CachedFork, Fork, ImageOrigin, ImageSource, QualifiedName, Relation,
    RelationFile, RelationName, RowKeys,
    pages::{CachedPages, PageBudget},
};

impl CacheImage {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_origin(&mut out, &self.origin);
        out.write_count(self.databases.len());
        for (&oid, name) in &self.databases {
            out.write_varint(u64::from(oid));
            out.write_text(name);
        }
        let mut relations: Vec<_> = self.relations.iter().collect();
        relations.sort_by_key(|relation| relation.file);
        out.write_count(relations.len());
        for relation in relations {
            write_relation(&mut out, relation);
        }
        out
    }

    /// Decodes a body of the format `version`, 1 or 2. Only the latter has keys of rows.
    pub(super) fn from_bytes(bytes: &[u8], version: u32) -> Result<Self, BodyError> {
        let mut reader = ByteReader::new(bytes);
        let origin = read_origin(&mut reader)?;
        let mut databases = BTreeMap::new();
        for _ in 0..reader.count()? {
            let oid = reader.narrow()?;
            databases.insert(oid, reader.text()?.to_owned());
        }
        let count = reader.count()?;
        let mut relations = Vec::new();
        let mut budget = PageBudget::new(origin.buffers);
        for _ in 0..count {
            relations.push(read_relation(&mut reader, version, &mut budget)?);
        }
        if reader.is_empty() {
            Ok(Self { origin, databases, relations })
        } else {
            Err(BodyError::InconsistentCounts)
        }
    }
}

/// The first format version with keys of rows.
const VERSION_OF_KEYS: u32 = 2;

pub(super) fn write_origin(out: &mut Vec<u8>, origin: &ImageOrigin) {
    out.write_varint(u64::from(origin.server_version));
    out.write_varint(origin.system_identifier);
    out.write_varint(u64::from(origin.page_bytes));
    out.write_varint(u64::from(origin.buffers));
    out.write_varint(origin.taken_at_us.cast_unsigned());
    out.push(match origin.source {
        ImageSource::Memory => 0,
        ImageSource::PgBuffercache => 1,
        ImageSource::Autoprewarm => 2,
        ImageSource::OsCache => 3,
    });
}

fn read_origin(reader: &mut ByteReader<'_>) -> Result<ImageOrigin, BodyError> {
    Ok(ImageOrigin {
        server_version: reader.narrow()?,
        system_identifier: reader.varint()?,
        page_bytes: reader.narrow()?,
        buffers: reader.narrow()?,
        taken_at_us: reader.varint()?.cast_signed(),
        source: match reader.byte()? {
            0 => ImageSource::Memory,
            1 => ImageSource::PgBuffercache,
            2 => ImageSource::Autoprewarm,
            3 => ImageSource::OsCache,
            found => return Err(BodyError::Unknown { what: "source", found }),
        },
    })
}

/// Returns the maximum size of a body, in bytes, by the number of buffers at its start; `None` if
/// that is unknown. `start` is the start of the body, at least [`ORIGIN_BYTES_MAX`] of it if it is
/// that long.
pub(super) fn size_limit(start: &[u8]) -> Result<Option<u64>, BodyError> {
    let mut reader = ByteReader::new(start);
    let (_version, _identifier, _page_bytes) =
        (reader.varint()?, reader.varint()?, reader.varint()?);
    Ok(match reader.narrow()? {
        0 => None,
        buffers => Some(BASE_BYTES_MAX + PageBudget::new(buffers).limit() * PAGE_BYTES_MAX),
    })
}

/// Maximum length of the numbers at the start of a body, up to the number of buffers.
pub(super) const ORIGIN_BYTES_MAX: u64 = 4 * 10;
/// Maximum bytes of a body without its pages: the origin, the names of databases, and relations
/// without pages.
const BASE_BYTES_MAX: u64 = 1 << 20;
/// Maximum bytes of a page in a body, if each page is the only one of its relation: file numbers,
/// schema and name of up to 63 bytes each, lengths, flags, and what later versions add.
const PAGE_BYTES_MAX: u64 = 512;

fn write_relation(out: &mut Vec<u8>, relation: &Relation) {
    out.write_varint(u64::from(relation.file.database));
    out.write_varint(u64::from(relation.file.tablespace));
    out.write_varint(u64::from(relation.file.filenode));
    out.push(u8::from(relation.is_logged));
    let (kind, name) = match &relation.name {
        None => (0, None),
        Some(RelationName::Own(name)) => (1, Some(name)),
        Some(RelationName::Toast(table)) => (2, Some(table)),
        Some(RelationName::ToastIndex(table)) => (3, Some(table)),
    };
    out.push(kind);
    if let Some(QualifiedName { schema, name }) = name {
        out.write_text(schema);
        out.write_text(name);
    }
    out.write_count(relation.forks.len());
    for fork in &relation.forks {
        // A fork number is at most 3.
        out.push(fork.fork.number() as u8);
        out.write_varint(fork.length.map_or(0, |length| u64::from(length) + 1));
        fork.pages.write(out);
    }
    match &relation.keys {
        Some(keys) => keys.write(out),
        None => out.write_count(0),
    }
}

fn read_relation(
    reader: &mut ByteReader<'_>,
    version: u32,
    budget: &mut PageBudget,
) -> Result<Relation, BodyError> {
    let file = RelationFile {
        database: reader.narrow()?,
        tablespace: reader.narrow()?,
        filenode: reader.narrow()?,
    };
    let is_logged = match reader.byte()? {
        0 => false,
        1 => true,
        found => return Err(BodyError::Unknown { what: "persistence", found }),
    };
    let kind = reader.byte()?;
    let mut qualified = || -> Result<_, CodecError> {
        let (schema, name) = (reader.text()?, reader.text()?);
        Ok(QualifiedName { schema: schema.to_owned(), name: name.to_owned() })
    };
    let name = match kind {
        0 => None,
        1 => Some(RelationName::Own(qualified()?)),
        2 => Some(RelationName::Toast(qualified()?)),
        3 => Some(RelationName::ToastIndex(qualified()?)),
        found => return Err(BodyError::Unknown { what: "kind of name", found }),
    };
    let mut forks = Vec::new();
    for _ in 0..reader.count()? {
        forks.push(read_fork(reader, budget)?);
    }
    let keys = if version >= VERSION_OF_KEYS { RowKeys::read(reader)? } else { None };
    Ok(Relation { file, name, is_logged, forks, keys })
}

fn read_fork(
    reader: &mut ByteReader<'_>,
    budget: &mut PageBudget,
) -> Result<CachedFork, BodyError> {
    let number = reader.byte()?;
    let fork = Fork::from_number(u32::from(number))
        .ok_or(BodyError::Unknown { what: "fork", found: number })?;
    let length = match reader.varint()?.checked_sub(1) {
        None => None,
        Some(length) => Some(u32::try_from(length).map_err(|_| BodyError::NumberOutOfRange)?),
    };
    Ok(CachedFork { fork, length, pages: CachedPages::read(reader, budget)? })
}
