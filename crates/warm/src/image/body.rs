//! An image as bytes: what stands in the file between its head and its end, before compression.
//!
//! Numbers are LEB128, texts are UTF-8 behind their length. The order of everything is fixed (databases
//! by oid, relations by file, forks by number, pages by block), so equal images are equal bytes.

use std::collections::BTreeMap;

use super::{
    CacheImage, CachedFork, Fork, Origin, QualifiedName, Relation, RelationFile, RelationName,
    Source,
    numbers::{self, Reader},
    pages::Pages,
};

/// What is wrong with the bytes of an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// It does not begin as an image does.
    #[error("it does not begin with the mark of a cache image")]
    NotAnImage,
    /// A later version of the format.
    #[error("it has version {found} of the format; this howdah reads up to version {known}")]
    Version {
        /// Of the file.
        found: u32,
        /// The highest that is known.
        known: u32,
    },
    /// It ends before its end.
    #[error("it ends in the middle: it was cut, or not written to its end")]
    Cut,
    /// The checksum is another one.
    #[error("its checksum is {found:016x} where {expected:016x} is written: bytes were changed")]
    Checksum {
        /// Of what is there.
        found: u64,
        /// What the file says.
        expected: u64,
    },
    /// It claims to unpack to more than is allowed.
    #[error("it claims to hold {bytes} bytes unpacked; at most {limit} are read")]
    TooLarge {
        /// What it claims.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// It does not unpack.
    #[error("its compressed part does not unpack")]
    Packing(#[source] std::io::Error),
    /// A number is out of its range.
    #[error("a number in it is out of its range")]
    Number,
    /// Two counts of the same thing differ.
    #[error("its counts contradict each other")]
    Counts,
    /// A text is not UTF-8.
    #[error("a name in it is not UTF-8")]
    Text,
    /// A byte that stands for one of several things stands for none.
    #[error("a {what} in it has the unknown number {found}")]
    Unknown {
        /// Of what.
        what: &'static str,
        /// The number.
        found: u8,
    },
}

impl CacheImage {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_origin(&mut out, &self.origin);
        numbers::put(&mut out, self.databases.len() as u64);
        for (&oid, name) in &self.databases {
            numbers::put(&mut out, u64::from(oid));
            numbers::put_text(&mut out, name);
        }
        let mut relations: Vec<_> = self.relations.iter().collect();
        relations.sort_by_key(|relation| relation.file);
        numbers::put(&mut out, relations.len() as u64);
        for relation in relations {
            write_relation(&mut out, relation);
        }
        out
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, BodyError> {
        let mut reader = Reader::new(bytes);
        let origin = read_origin(&mut reader)?;
        let mut databases = BTreeMap::new();
        for _ in 0..reader.count()? {
            let oid = reader.word()?;
            databases.insert(oid, reader.text()?);
        }
        let count = reader.count()?;
        let mut relations = Vec::new();
        for _ in 0..count {
            relations.push(read_relation(&mut reader)?);
        }
        if reader.is_empty() {
            Ok(Self { origin, databases, relations })
        } else {
            Err(BodyError::Counts)
        }
    }
}

fn write_origin(out: &mut Vec<u8>, origin: &Origin) {
    numbers::put(out, u64::from(origin.server_version));
    numbers::put(out, origin.system_identifier);
    numbers::put(out, u64::from(origin.page_bytes));
    numbers::put(out, u64::from(origin.buffers));
    numbers::put(out, origin.taken_at_us.cast_unsigned());
    out.push(match origin.source {
        Source::Memory => 0,
        Source::PgBuffercache => 1,
        Source::Autoprewarm => 2,
    });
}

fn read_origin(reader: &mut Reader<'_>) -> Result<Origin, BodyError> {
    Ok(Origin {
        server_version: reader.word()?,
        system_identifier: reader.number()?,
        page_bytes: reader.word()?,
        buffers: reader.word()?,
        taken_at_us: reader.number()?.cast_signed(),
        source: match reader.byte()? {
            0 => Source::Memory,
            1 => Source::PgBuffercache,
            2 => Source::Autoprewarm,
            found => return Err(BodyError::Unknown { what: "source", found }),
        },
    })
}

fn write_relation(out: &mut Vec<u8>, relation: &Relation) {
    numbers::put(out, u64::from(relation.file.database));
    numbers::put(out, u64::from(relation.file.tablespace));
    numbers::put(out, u64::from(relation.file.filenode));
    out.push(u8::from(relation.is_logged));
    let (kind, name) = match &relation.name {
        None => (0, None),
        Some(RelationName::Own(name)) => (1, Some(name)),
        Some(RelationName::Toast(table)) => (2, Some(table)),
        Some(RelationName::ToastIndex(table)) => (3, Some(table)),
    };
    out.push(kind);
    if let Some(QualifiedName { schema, name }) = name {
        numbers::put_text(out, schema);
        numbers::put_text(out, name);
    }
    numbers::put(out, relation.forks.len() as u64);
    for fork in &relation.forks {
        // A fork number is at most 3.
        out.push(fork.fork.number() as u8);
        numbers::put(out, fork.length.map_or(0, |length| u64::from(length) + 1));
        fork.pages.write(out);
    }
}

fn read_relation(reader: &mut Reader<'_>) -> Result<Relation, BodyError> {
    let file = RelationFile {
        database: reader.word()?,
        tablespace: reader.word()?,
        filenode: reader.word()?,
    };
    let is_logged = match reader.byte()? {
        0 => false,
        1 => true,
        found => return Err(BodyError::Unknown { what: "persistence", found }),
    };
    let kind = reader.byte()?;
    let mut qualified = || Ok(QualifiedName { schema: reader.text()?, name: reader.text()? });
    let name = match kind {
        0 => None,
        1 => Some(RelationName::Own(qualified()?)),
        2 => Some(RelationName::Toast(qualified()?)),
        3 => Some(RelationName::ToastIndex(qualified()?)),
        found => return Err(BodyError::Unknown { what: "kind of name", found }),
    };
    let mut forks = Vec::new();
    for _ in 0..reader.count()? {
        forks.push(read_fork(reader)?);
    }
    Ok(Relation { file, name, is_logged, forks })
}

fn read_fork(reader: &mut Reader<'_>) -> Result<CachedFork, BodyError> {
    let number = reader.byte()?;
    let fork = Fork::from_number(u32::from(number))
        .ok_or(BodyError::Unknown { what: "fork", found: number })?;
    let length = match reader.number()?.checked_sub(1) {
        None => None,
        Some(length) => Some(u32::try_from(length).map_err(|_| BodyError::Number)?),
    };
    Ok(CachedFork { fork, length, pages: Pages::read(reader)? })
}
