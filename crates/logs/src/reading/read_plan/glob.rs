//! Expands file name patterns in paths that the shell did not expand: quoted, or from
//! `howdah.toml`.

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

/// Whether a path contains any of `*`, `?` and `[`.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().any(|byte| b"*?[".contains(byte))
}

/// Returns the paths that match a pattern, sorted by name. Components match as in a shell: `*`
/// stands for any number of characters but `/`, `?` for one, `[a-z]` for one of a set, `[!a-z]` and
/// `[^a-z]` for one that is not in the set, and none of them for a leading dot.
///
/// # Errors
///
/// A directory cannot be read.
pub(super) fn expand(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = vec![PathBuf::new()];
    for component in pattern.components() {
        match component {
            Component::Normal(name) if is_pattern(Path::new(name)) => {
                let mut next = Vec::new();
                for path in &paths {
                    next.append(&mut matching(path, name)?);
                }
                paths = next;
            }
            other => {
                paths.iter_mut().for_each(|path| path.push(other));
                paths.retain(|path| path.as_os_str().is_empty() || path.exists());
            }
        }
    }
    Ok(paths)
}

fn matching(dir: &Path, pattern: &OsStr) -> io::Result<Vec<PathBuf>> {
    let parent = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    if !parent.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(parent)? {
        let name = entry?.file_name();
        let is_hidden = name.as_bytes().starts_with(b".");
        let may_be_hidden = pattern.as_bytes().starts_with(b".");
        if (!is_hidden || may_be_hidden) && matches(pattern.as_bytes(), name.as_bytes()) {
            paths.push(dir.join(name));
        }
    }
    paths.sort();
    Ok(paths)
}

/// Whether a name matches a pattern. The time is at most quadratic in the sum of their lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The position from which to retry if the last `*` must match one more character.
    let mut retry = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some(_) => {
                if let Some(len) = match_one(&pattern[p..], name[n]) {
                    (p, n) = (p + len, n + 1);
                    continue;
                }
            }
            None => {}
        }
        let Some((after, from)) = retry else { return false };
        retry = Some((after, from + 1));
        (p, n) = (after, from + 1);
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Returns the length of the pattern item at the front, if it matches `byte`.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => {
            let (negated, set) = match rest {
                [b'!' | b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            // A bracket at the front is a member of the set.
            let Some(end) = set.iter().skip(1).position(|b| *b == b']').map(|at| at + 1) else {
                return (byte == b'[').then_some(1);
            };
            let len = pattern.len() - set.len() + end + 1;
            (is_in(&set[..end], byte) != negated).then_some(len)
        }
        [plain, ..] => (*plain == byte).then_some(1),
        [] => None,
    }
}

fn is_in(mut set: &[u8], byte: u8) -> bool {
    loop {
        match set {
            [first, b'-', last, rest @ ..] => {
                if (*first..=*last).contains(&byte) {
                    return true;
                }
                set = rest;
            }
            [match_one, rest @ ..] => {
                if *match_one == byte {
                    return true;
                }
                set = rest;
            }
            [] => return false,
        }
    }
}

#[test]
fn names_match_as_in_a_shell() {
    for (pattern, matching_names, not) in [
        ("*.log", &["a.log", ".log"][..], &["a.log.1", "log"][..]),
        ("postgresql-*.csv*", &["postgresql-Mon.csv", "postgresql-1.csv.gz"], &["postgresql.csv"]),
        ("a?c", &["abc", "a?c"], &["ac", "abbc"]),
        ("[a-c]1", &["a1", "b1"], &["d1", "-1", "1"]),
        ("[!a-c]1", &["d1"], &["a1"]),
        ("[]x]", &["]", "x"], &["a"]),
        ("[ab", &["[ab"], &["a"]),
        ("*a*a*b", &["aab", "xaxaxb"], &["ab", "aaa"]),
    ] {
        for name in matching_names {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for name in not {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }
    let (pattern, name) = ("a*".repeat(500), "a".repeat(5000) + "b");
    assert!(!matches((pattern + "c").as_bytes(), name.as_bytes()));
}

#[test]
fn pattern_directories_are_expanded() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let log = root.join("server/log/a.log");
    std::fs::create_dir_all(root.join("server/log")).expect("a folder");
    std::fs::write(&log, "").expect("a file");
    let got = expand(&root.join("server/log/[a]?log")).expect("a directory");
    assert_eq!(got, std::slice::from_ref(&log));
    let got = expand(&root.join("s*/l?g/*.log")).expect("a directory");
    assert_eq!(got, [log]);
    assert_eq!(expand(&root.join("server/*.log")).expect("a directory"), Vec::<PathBuf>::new());
    assert_eq!(expand(&root.join("no/such/*")).expect("no directory"), Vec::<PathBuf>::new());
}
