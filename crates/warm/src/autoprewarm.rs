//! Reads and writes `autoprewarm.blocks`, the file of contrib's `pg_prewarm`.
//!
//! The first line is `<<N>>`, the number of pages; then one line per page: database, tablespace,
//! relation file number, fork, block, separated by commas. Database 0 means the shared catalogs.
//! The file contains neither names nor usage. Source: `apw_dump_now` and `apw_load_buffers` in
//! `autoprewarm.c`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, Read as _, Write},
    ops::Range,
    path::Path,
};

use crate::image::{
    CacheImage, CachedFork, CachedPage, CachedPages, Fork, ImageOrigin, ImageSource, Relation,
    RelationFile,
};

/// The reason why an autoprewarm file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AutoprewarmError {
    /// The file could not be read.
    #[error("cannot read the block dump")]
    Read(#[from] io::Error),
    /// The first line is not `<<N>>`.
    #[error("line 1: {text:?} is not the number of blocks, as in <<38456>>")]
    Head {
        /// The first line, truncated to 60 characters.
        text: String,
    },
    /// A line is not five valid numbers.
    #[error("line {line}: {text:?} is not database,tablespace,filenode,fork,block")]
    Line {
        /// Number of the line, from 1.
        line: u64,
        /// The text of the line, truncated to 60 characters.
        text: String,
    },
    /// The number of lines differs from that in the first line.
    #[error(
        "the number of blocks is {found}, but the first line says {expected}: the file was truncated or changed"
    )]
    Count {
        /// Number of page lines in the file.
        found: u64,
        /// Number of pages that the first line states.
        expected: u64,
    },
}

/// Reads the file of a server with pages of `page_bytes` bytes, taken at `taken_at_us`
/// (microseconds since 1970, e.g. the file's modification time).
///
/// Pages get usage count 1, since the file does not record usage. The cluster is not recorded
/// either; see [`system_identifier`].
///
/// # Errors
///
/// The file cannot be read, or does not have autoprewarm's format.
pub fn read(
    file: impl BufRead,
    page_bytes: u32,
    taken_at_us: i64,
) -> Result<CacheImage, AutoprewarmError> {
    let mut lines = LineReader { file, line: 0, text: Vec::new() };
    let expected = lines.next()?.and_then(|line| parse_header(line.text));
    let expected = expected.ok_or_else(|| AutoprewarmError::Head { text: lines.excerpt() })?;
    let mut forks: BTreeMap<(RelationFile, u32), Vec<CachedPage>> = BTreeMap::new();
    let mut found = 0;
    while let Some(line) = lines.next()? {
        let Some((file, fork, block)) = parse_block(line.text) else {
            return Err(AutoprewarmError::Line { line: line.number, text: lines.excerpt() });
        };
        let page = CachedPage { block, usage: 1, is_dirty: false };
        forks.entry((file, fork.number())).or_default().push(page);
        found += 1;
    }
    if found != expected {
        return Err(AutoprewarmError::Count { found, expected });
    }
    let origin = ImageOrigin {
        server_version: 0,
        system_identifier: 0,
        page_bytes,
        buffers: 0,
        taken_at_us,
        source: ImageSource::Autoprewarm,
    };
    Ok(CacheImage { origin, databases: BTreeMap::new(), relations: group_relations(forks) })
}

/// Returns the system identifier of the cluster in `data_dir`, from its `global/pg_control`; `None`
/// if the file does not exist or its contents are not recognized.
///
/// The file begins with the identifier, 8 bytes in native byte order, followed by the version of
/// its layout, 4 bytes (`ControlFileData` in `pg_control.h`).
///
/// # Errors
///
/// The file exists but cannot be read.
pub fn system_identifier(data_dir: &Path) -> io::Result<Option<u64>> {
    /// Layout versions are those of the major version that introduced them: 1300 since 13, 1700 in
    /// 17, 1800 in 18.
    const LAYOUTS: Range<u32> = 1_000..10_000;
    let mut file = match File::open(data_dir.join("global/pg_control")) {
        Ok(file) => file,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let (mut identifier, mut layout) = ([0; 8], [0; 4]);
    match file.read_exact(&mut identifier).and_then(|()| file.read_exact(&mut layout)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let is_known = LAYOUTS.contains(&u32::from_ne_bytes(layout));
    Ok(Some(u64::from_ne_bytes(identifier)).filter(|&it| is_known && it != 0))
}

/// Writes the pages of `image` in autoprewarm's format: all of them, or only the `limit` hottest.
/// Returns their number.
///
/// Autoprewarm sorts what it reads and stops when no buffer is free. So if a server has fewer
/// buffers than the image has pages, the limit decides which pages are loaded. Unlogged relations
/// are omitted, as by autoprewarm's periodic dumps: after a crash they are empty.
///
/// # Errors
///
/// `out` cannot be written.
pub fn write(image: &CacheImage, limit: Option<u64>, out: impl Write) -> io::Result<u64> {
    let mut out = io::BufWriter::new(out);
    let coolest = limit.map_or(HeatCutoff::ALL, |limit| HeatCutoff::for_limit(image, limit));
    let count = selected_pages(image, coolest).count();
    writeln!(out, "<<{count}>>")?;
    for (RelationFile { database, tablespace, filenode }, fork, block) in
        selected_pages(image, coolest)
    {
        writeln!(out, "{database},{tablespace},{filenode},{},{block}", fork.number())?;
    }
    out.flush()?;
    Ok(count as u64)
}

fn logged_pages(image: &CacheImage) -> impl Iterator<Item = (RelationFile, Fork, CachedPage)> {
    image.relations.iter().filter(|relation| relation.is_logged).flat_map(|relation| {
        relation
            .forks
            .iter()
            .flat_map(|fork| fork.pages.iter().map(|page| (relation.file, fork.fork, page)))
    })
}

fn selected_pages(
    image: &CacheImage,
    coolest: HeatCutoff,
) -> impl Iterator<Item = (RelationFile, Fork, u32)> {
    let mut remaining = coolest.count;
    logged_pages(image)
        .filter(move |(_, _, page)| {
            page.usage > coolest.usage
                || page.usage == coolest.usage
                    && remaining.checked_sub(1).inspect(|&rest| remaining = rest).is_some()
        })
        .map(|(file, fork, page)| (file, fork, page.block))
}

/// The cutoff for a limit: selects all pages with a usage count above `usage`, and up to `count`
/// pages whose usage count is `usage`.
#[derive(Clone, Copy)]
struct HeatCutoff {
    usage: u8,
    count: u64,
}

impl HeatCutoff {
    const ALL: Self = Self { usage: 0, count: u64::MAX };

    fn for_limit(image: &CacheImage, limit: u64) -> Self {
        let mut counts = [0_u64; 16];
        for (_, _, page) in logged_pages(image) {
            counts[usize::from(page.usage & 0xf)] += 1;
        }
        let mut remaining = limit;
        for usage in (0..16_u8).rev() {
            let count = counts[usize::from(usage)];
            if count > remaining {
                return Self { usage, count: remaining };
            }
            remaining -= count;
        }
        Self::ALL
    }
}

fn group_relations(forks: BTreeMap<(RelationFile, u32), Vec<CachedPage>>) -> Vec<Relation> {
    let mut relations: Vec<Relation> = Vec::new();
    for ((file, fork), pages) in forks {
        let pages: CachedPages = pages.into_iter().collect();
        let fork = Fork::from_number(fork).expect("fork numbers were validated");
        let fork = CachedFork { fork, length: None, pages };
        match relations.last_mut() {
            Some(last) if last.file == file => last.forks.push(fork),
            _ => relations.push(Relation {
                file,
                name: None,
                is_logged: true,
                forks: vec![fork],
                keys: None,
            }),
        }
    }
    relations
}

fn parse_header(line: &[u8]) -> Option<u64> {
    parse_number(line.strip_prefix(b"<<")?.strip_suffix(b">>")?)
}

fn parse_block(line: &[u8]) -> Option<(RelationFile, Fork, u32)> {
    let mut fields = line.split(|&byte| byte == b',').map(parse_number::<u32>);
    let mut next = || fields.next().flatten();
    let file = RelationFile { database: next()?, tablespace: next()?, filenode: next()? };
    let (fork, block) = (Fork::from_number(next()?)?, next()?);
    // The highest number is `InvalidBlockNumber`, which is not a valid block.
    (fields.next().is_none() && block != u32::MAX).then_some((file, fork, block))
}

fn parse_number<N: std::str::FromStr>(digits: &[u8]) -> Option<N> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

struct LineReader<R> {
    file: R,
    line: u64,
    text: Vec<u8>,
}

struct BlockLine<'a> {
    number: u64,
    text: &'a [u8],
}

impl<R: BufRead> LineReader<R> {
    fn next(&mut self) -> io::Result<Option<BlockLine<'_>>> {
        self.text.clear();
        // The longest valid line has 53 bytes; another file may have no line ends at all.
        let limited = &mut io::Read::take(&mut self.file, MAX_LINE_BYTES);
        if limited.read_until(b'\n', &mut self.text)? == 0 {
            return Ok(None);
        }
        self.line += 1;
        let text = self.text.trim_ascii_end();
        Ok(Some(BlockLine { number: self.line, text }))
    }

    fn excerpt(&self) -> String {
        String::from_utf8_lossy(&self.text).trim_end().chars().take(60).collect()
    }
}

const MAX_LINE_BYTES: u64 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "<<5>>\n0,1664,1260,0,0\n5,1663,16384,0,3\n5,1663,16384,0,4\n5,1663,16384,2,0\n5,1663,16390,0,1\n";

    fn parsed(text: &str) -> Result<CacheImage, AutoprewarmError> {
        read(text.as_bytes(), 8192, 0)
    }

    #[test]
    fn block_file_round_trips() {
        let image = parsed(FILE).unwrap();
        assert_eq!(image.relations.len(), 3);
        assert_eq!(image.page_count(), 5);
        let mut out = Vec::new();
        assert_eq!(write(&image, None, &mut out).unwrap(), 5);
        assert_eq!(String::from_utf8(out).unwrap(), FILE);
    }

    #[test]
    fn parse_errors_name_their_line() {
        let error = |text: &str| parsed(text).unwrap_err().to_string();
        assert!(error("").starts_with("line 1:"), "{}", error(""));
        assert!(error("<<x>>\n").contains("\"<<x>>\""));
        assert!(error("<<2>>\n0,1664,1260,0,0\n1,2,3\n").starts_with("line 3: \"1,2,3\""));
        assert!(error("<<1>>\n0,1664,1260,9,0\n").starts_with("line 2"));
        assert!(error("<<1>>\n0,1664,1260,0,0,0\n").starts_with("line 2"));
        assert!(error("<<1>>\n0,1664,1260,0,4294967295\n").starts_with("line 2"));
        assert!(error("<<3>>\n0,1664,1260,0,0\n").contains("is 1, but the first line says 3"));
        assert!(error(&"x".repeat(10_000)).len() < 200);
    }

    #[test]
    fn limit_selects_the_hottest_pages() {
        let mut image = parsed("<<1>>\n5,1663,16384,0,0\n").unwrap();
        image.relations[0].forks[0].pages = [(0, 1), (1, 5), (2, 1), (3, 2), (4, 1)]
            .map(|(block, usage)| CachedPage { block, usage, is_dirty: false })
            .into_iter()
            .collect();
        let blocks = |limit| {
            let mut out = Vec::new();
            write(&image, Some(limit), &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            text.lines()
                .skip(1)
                .map(|line| line.rsplit(',').next().unwrap().to_owned())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!([blocks(0), blocks(2), blocks(3), blocks(9)], ["", "1 3", "0 1 3", "0 1 2 3 4"]);
    }

    #[test]
    fn unlogged_relations_are_omitted() {
        let mut image = parsed(FILE).unwrap();
        image.relations[1].is_logged = false;
        let mut out = Vec::new();
        assert_eq!(write(&image, None, &mut out).unwrap(), 2);
    }
}
