//! Reads pages from the extension `pg_buffercache` with `COPY`, parsed line by line, so that a
//! large cache is never held as text.

use std::io::{self, Write};

use howdah_connect::Client;

use super::{BufferContents, QueryFailure};
use crate::image::{CachedPage, Fork, RelationFile};

/// Rows without a relation are free buffers. These columns have existed since 9.6.
const SQL: &str =
    "COPY (SELECT reldatabase, reltablespace, relfilenode, relforknumber, relblocknumber,
    usagecount, isdirty FROM pg_buffercache WHERE relfilenode IS NOT NULL) TO STDOUT";

pub(super) fn read(client: &mut Client) -> Result<BufferContents, QueryFailure> {
    let mut rows = CopyRowParser { cached: BufferContents::default(), rest: Vec::new() };
    client.copy_out(SQL, &mut rows)?;
    Ok(rows.cached)
}

/// Parses rows in COPY's text format, which may arrive in pieces of any size.
struct CopyRowParser {
    cached: BufferContents,
    rest: Vec<u8>,
}

impl CopyRowParser {
    fn add_row(&mut self, line: &[u8]) -> io::Result<()> {
        let (file, fork, page) = parse_row(line).ok_or_else(|| {
            let line = String::from_utf8_lossy(line).into_owned();
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("unexpected row of pg_buffercache: {line:?}"),
            )
        })?;
        self.cached.forks.entry((file, fork)).or_default().push(page);
        Ok(())
    }
}

impl Write for CopyRowParser {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut unparsed = bytes;
        while let Some(end) = unparsed.iter().position(|&byte| byte == b'\n') {
            let (line, rest) = unparsed.split_at(end);
            if self.rest.is_empty() {
                self.add_row(line)?;
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                self.add_row(&whole)?;
            }
            unparsed = &rest[1..];
        }
        if self.rest.len() + unparsed.len() > MAX_ROW_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "row of pg_buffercache is too long",
            ));
        }
        self.rest.extend_from_slice(unparsed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Maximum length of a row in bytes; valid rows are much shorter.
const MAX_ROW_BYTES: usize = 1000;

fn parse_row(line: &[u8]) -> Option<(RelationFile, Fork, CachedPage)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split('\t');
    let mut word = || fields.next()?.parse::<u32>().ok();
    let file = RelationFile { database: word()?, tablespace: word()?, filenode: word()? };
    let (fork, block, usage) = (Fork::from_number(word()?)?, word()?, word()?);
    let is_dirty = match fields.next()? {
        "t" => true,
        "f" => false,
        _ => return None,
    };
    Some((file, fork, CachedPage { block, usage: u8::try_from(usage).ok()?, is_dirty }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_may_be_split_anywhere() {
        let text = b"5\t1663\t16384\t0\t7\t3\tt\n0\t1664\t1262\t2\t0\t5\tf\n";
        for size in 1..text.len() {
            let mut rows = CopyRowParser { cached: BufferContents::default(), rest: Vec::new() };
            text.chunks(size).for_each(|piece| rows.write_all(piece).unwrap());
            let forks: Vec<_> = rows.cached.forks.into_iter().collect();
            let shared = RelationFile { database: 0, tablespace: 1664, filenode: 1262 };
            let own = RelationFile { database: 5, tablespace: 1663, filenode: 16384 };
            let expected = [
                (
                    (shared, Fork::VisibilityMap),
                    vec![CachedPage { block: 0, usage: 5, is_dirty: false }],
                ),
                ((own, Fork::Main), vec![CachedPage { block: 7, usage: 3, is_dirty: true }]),
            ];
            assert_eq!(forks, expected);
        }
    }

    #[test]
    fn malformed_rows_are_rejected() {
        let mut rows = CopyRowParser { cached: BufferContents::default(), rest: Vec::new() };
        assert!(rows.write_all(b"5\t1663\tx\t0\t7\t3\tt\n").is_err());
        let mut rows = CopyRowParser { cached: BufferContents::default(), rest: Vec::new() };
        assert!(rows.write_all(&[b'1'; 2000]).is_err());
    }
}
