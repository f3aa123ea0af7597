//! `autoprewarm.blocks`, the file of contrib's `pg_prewarm`: read into an image, written from one.
//!
//! The first line is `<<N>>`, the number of pages; then a line a page: database, tablespace, relation
//! file number, fork, block, separated by commas. Database 0 holds the shared catalogs. The file knows
//! neither names nor usage. Source: `apw_dump_now` and `apw_load_buffers` in `autoprewarm.c`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, Read as _, Write},
    ops::Range,
    path::Path,
};

use crate::image::{
    CacheImage, CachedFork, Fork, Origin, Page, Pages, Relation, RelationFile, Source,
};

/// What is wrong with a file of autoprewarm.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AutoprewarmError {
    /// It could not be read.
    #[error("the block dump could not be read")]
    Read(#[from] io::Error),
    /// The first line is not `<<N>>`.
    #[error("line 1: {text:?} is not the number of blocks, as in <<38456>>")]
    Head {
        /// The line.
        text: String,
    },
    /// A line is not five numbers.
    #[error("line {line}: {text:?} is not database,tablespace,filenode,fork,block")]
    Line {
        /// Its number, from 1 on.
        line: u64,
        /// What is there.
        text: String,
    },
    /// There are fewer or more lines than the first one says.
    #[error("it holds {found} blocks where its first line says {expected}: it was cut or changed")]
    Count {
        /// Lines there are.
        found: u64,
        /// Lines there should be.
        expected: u64,
    },
}

/// Reads the file of a server whose pages have `page_bytes`, taken at `taken_at_us` (microseconds
/// since 1970; say, when it was last changed).
///
/// Pages get the usage count 1: they were in the cache, and more is not known. Which cluster it is from is
/// not in the file; see [`system_identifier`].
///
/// # Errors
///
/// The file cannot be read, or is not what autoprewarm writes.
pub fn read(
    file: impl BufRead,
    page_bytes: u32,
    taken_at_us: i64,
) -> Result<CacheImage, AutoprewarmError> {
    let mut lines = Lines { file, line: 0, text: Vec::new() };
    let expected = lines.next()?.and_then(|line| head(line.text));
    let expected = expected.ok_or_else(|| AutoprewarmError::Head { text: lines.shown() })?;
    let mut forks: BTreeMap<(RelationFile, u32), Vec<Page>> = BTreeMap::new();
    let mut found = 0;
    while let Some(line) = lines.next()? {
        let Some((file, fork, block)) = entry(line.text) else {
            return Err(AutoprewarmError::Line { line: line.number, text: lines.shown() });
        };
        let page = Page { block, usage: 1, is_dirty: false };
        forks.entry((file, fork.number())).or_default().push(page);
        found += 1;
    }
    if found != expected {
        return Err(AutoprewarmError::Count { found, expected });
    }
    let origin = Origin {
        server_version: 0,
        system_identifier: 0,
        page_bytes,
        buffers: 0,
        taken_at_us,
        source: Source::Autoprewarm,
    };
    Ok(CacheImage { origin, databases: BTreeMap::new(), relations: relations(forks) })
}

/// The system identifier of the cluster whose data directory is `data_dir`, from its `global/pg_control`;
/// nothing, if there is no such file, or it is none of the versions known.
///
/// The file begins with it, 8 bytes in the order of the machine, and the number of its layout, 4 bytes
/// (`ControlFileData` in `pg_control.h`).
///
/// # Errors
///
/// The file is there and cannot be read.
pub fn system_identifier(data_dir: &Path) -> io::Result<Option<u64>> {
    /// Layouts are numbered by the major that brought them: 1300 since 13, 1700 in 17, 1800 in 18.
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

/// Writes the pages of `image` so that autoprewarm loads them: all of them, or the `limit` hottest.
///
/// Autoprewarm sorts what it reads and stops when no buffer is free, so where a server has fewer
/// buffers than an image has pages, a limit decides which ones come back. Unlogged relations are left
/// out, as by its own periodic dumps: after a crash they are empty.
///
/// # Errors
///
/// `out` cannot be written.
pub fn write(image: &CacheImage, limit: Option<u64>, out: impl Write) -> io::Result<u64> {
    let mut out = io::BufWriter::new(out);
    let coolest = limit.map_or(Coolest::ALL, |limit| Coolest::of(image, limit));
    let count = chosen(image, coolest).count();
    writeln!(out, "<<{count}>>")?;
    for (RelationFile { database, tablespace, filenode }, fork, block) in chosen(image, coolest) {
        writeln!(out, "{database},{tablespace},{filenode},{},{block}", fork.number())?;
    }
    out.flush()?;
    Ok(count as u64)
}

fn logged(image: &CacheImage) -> impl Iterator<Item = (RelationFile, Fork, Page)> {
    image.relations.iter().filter(|relation| relation.is_logged).flat_map(|relation| {
        relation
            .forks
            .iter()
            .flat_map(|fork| fork.pages.iter().map(|page| (relation.file, fork.fork, page)))
    })
}

fn chosen(image: &CacheImage, coolest: Coolest) -> impl Iterator<Item = (RelationFile, Fork, u32)> {
    let mut left = coolest.count;
    logged(image)
        .filter(move |(_, _, page)| {
            page.usage > coolest.usage
                || page.usage == coolest.usage
                    && left.checked_sub(1).inspect(|&rest| left = rest).is_some()
        })
        .map(|(file, fork, page)| (file, fork, page.block))
}

/// Where a limit cuts: pages of more usage are in, and so many of this one.
#[derive(Clone, Copy)]
struct Coolest {
    usage: u8,
    count: u64,
}

impl Coolest {
    const ALL: Self = Self { usage: 0, count: u64::MAX };

    fn of(image: &CacheImage, limit: u64) -> Self {
        let mut counts = [0_u64; 16];
        for (_, _, page) in logged(image) {
            counts[usize::from(page.usage & 0xf)] += 1;
        }
        let mut left = limit;
        for usage in (0..16_u8).rev() {
            let count = counts[usize::from(usage)];
            if count > left {
                return Self { usage, count: left };
            }
            left -= count;
        }
        Self::ALL
    }
}

fn relations(forks: BTreeMap<(RelationFile, u32), Vec<Page>>) -> Vec<Relation> {
    let mut relations: Vec<Relation> = Vec::new();
    for ((file, fork), pages) in forks {
        let pages: Pages = pages.into_iter().collect();
        let fork = Fork::from_number(fork).expect("only numbers of forks are kept");
        let fork = CachedFork { fork, length: None, pages };
        match relations.last_mut() {
            Some(last) if last.file == file => last.forks.push(fork),
            _ => relations.push(Relation { file, name: None, is_logged: true, forks: vec![fork] }),
        }
    }
    relations
}

fn head(line: &[u8]) -> Option<u64> {
    number(line.strip_prefix(b"<<")?.strip_suffix(b">>")?)
}

fn entry(line: &[u8]) -> Option<(RelationFile, Fork, u32)> {
    let mut fields = line.split(|&byte| byte == b',').map(number::<u32>);
    let mut next = || fields.next().flatten();
    let file = RelationFile { database: next()?, tablespace: next()?, filenode: next()? };
    let (fork, block) = (Fork::from_number(next()?)?, next()?);
    fields.next().is_none().then_some((file, fork, block))
}

fn number<N: std::str::FromStr>(digits: &[u8]) -> Option<N> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

struct Lines<R> {
    file: R,
    line: u64,
    text: Vec<u8>,
}

struct Line<'a> {
    number: u64,
    text: &'a [u8],
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.text.clear();
        // The longest line of the format has 53 bytes; another file's may have no end.
        let limited = &mut io::Read::take(&mut self.file, MAX_LINE_BYTES);
        if limited.read_until(b'\n', &mut self.text)? == 0 {
            return Ok(None);
        }
        self.line += 1;
        let text = self.text.trim_ascii_end();
        Ok(Some(Line { number: self.line, text }))
    }

    fn shown(&self) -> String {
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
    fn what_is_read_is_written() {
        let image = parsed(FILE).unwrap();
        assert_eq!(image.relations.len(), 3);
        assert_eq!(image.page_count(), 5);
        let mut out = Vec::new();
        assert_eq!(write(&image, None, &mut out).unwrap(), 5);
        assert_eq!(String::from_utf8(out).unwrap(), FILE);
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let told = |text: &str| parsed(text).unwrap_err().to_string();
        assert!(told("").starts_with("line 1:"), "{}", told(""));
        assert!(told("<<x>>\n").contains("\"<<x>>\""));
        assert!(told("<<2>>\n0,1664,1260,0,0\n1,2,3\n").starts_with("line 3: \"1,2,3\""));
        assert!(told("<<1>>\n0,1664,1260,9,0\n").starts_with("line 2"));
        assert!(told("<<1>>\n0,1664,1260,0,0,0\n").starts_with("line 2"));
        assert!(told("<<3>>\n0,1664,1260,0,0\n").contains("1 blocks where its first line says 3"));
        assert!(told(&"x".repeat(10_000)).len() < 200);
    }

    #[test]
    fn a_limit_takes_the_hottest() {
        let mut image = parsed("<<1>>\n5,1663,16384,0,0\n").unwrap();
        image.relations[0].forks[0].pages = [(0, 1), (1, 5), (2, 1), (3, 2), (4, 1)]
            .map(|(block, usage)| Page { block, usage, is_dirty: false })
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
    fn what_a_crash_empties_is_left_out() {
        let mut image = parsed(FILE).unwrap();
        image.relations[1].is_logged = false;
        let mut out = Vec::new();
        assert_eq!(write(&image, None, &mut out).unwrap(), 2);
    }
}
