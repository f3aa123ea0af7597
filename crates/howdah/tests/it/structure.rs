//! The shape of the code inside the crates: how large types are, which modules depend on each other
//! in circles, and which files lie outside of any folder or module.
//!
//! Source files are read as text, which rustfmt makes reliable: an item begins in the first column
//! and its members in the fifth. Test code does not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Maximum number of methods of a type, over all its `impl` blocks without a trait.
const METHODS_MAX: usize = 25;

/// Types with more methods, and how many they have. The numbers may only fall.
const LARGE_TYPES: &[(&str, usize)] = &[
    ("capture::SessionDecoder", 39),
    ("connect::Client", 27),
    ("lab::Builder", 27),
    ("lab::Cluster", 30),
    ("logs::Importer", 28),
    ("pool::PoolWorker", 48),
    ("pool::PoolerHandle", 44),
    ("probe::Assembler", 27),
    ("replay::Player", 44),
    ("replay::ReplayWorker", 30),
    ("route::RouteSession", 32),
    ("session::ClientSession", 36),
    ("top::Model", 47),
];

/// Maximum number of fields of a struct.
const FIELDS_MAX: usize = 25;

/// Structs with more fields, and how many they have. The numbers may only fall.
const LONG_STRUCTS: &[(&str, usize)] = &[
    ("dataset::capture::event_columns::EventColumns", 32),
    ("howdah::commands::capture::cat::EventLine", 31),
    ("logs::summary::facts::LogFacts", 38),
    ("pool-config::Config", 30),
    ("pool-config::database::DatabaseConfig", 28),
    ("pool-core::spec::PoolSpec", 27),
];

/// Crates with modules that depend on each other in circles, and how many such modules they have.
/// The numbers may only fall.
const CIRCLES: &[(&str, usize)] = &[
    ("dataset", 6),
    ("demo", 3),
    ("lab", 8),
    ("logs", 3),
    ("pool", 35),
    ("pool-config", 8),
    ("stats", 2),
    ("statsd", 3),
    ("top", 10),
    ("warm", 4),
];

/// Maximum number of files directly in a crate's `src`.
const LOOSE_FILES_MAX: usize = 26;

/// Crates with more, and how many they have. The numbers may only fall.
const LOOSE_FILES: &[(&str, usize)] = &[("pool-config", 30)];

impl SourceFile {
    /// Returns the name of a type that the file defines, with its crate and module.
    fn full_name(&self, folder: &Path, name: &str) -> String {
        let module = self.module.iter().map(String::as_str);
        let krate = name_of(folder);
        [krate.as_str()].into_iter().chain(module).chain([name]).collect::<Vec<_>>().join("::")
    }
}

/// A source file without its test code and comments.
struct SourceFile {
    /// The file's module below the crate's root; empty for the root itself.
    module: Vec<String>,
    code: String,
}

fn crate_folders() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<_> = folders.filter(|path| path.join("src").is_dir()).collect();
    folders.sort();
    folders
}

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Returns the source files of a crate, except those whose whole module is a test.
fn source_files(folder: &Path) -> Vec<SourceFile> {
    let (root, mut files) = (folder.join("src"), Vec::new());
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let module = path.strip_prefix(&root).unwrap().with_extension("");
                let mut module: Vec<String> =
                    module.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
                if module == ["lib"] || module == ["main"] {
                    module.clear();
                }
                files.push(SourceFile { module, code: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    let tests = files.iter().flat_map(test_modules).collect::<BTreeSet<_>>();
    let is_test = |file: &SourceFile| {
        file.module.last().is_some_and(|name| name == "tests")
            || (1..=file.module.len()).any(|length| tests.contains(&file.module[..length]))
    };
    files.retain(|file| !is_test(file));
    files.iter_mut().for_each(|file| file.code = without_tests(&file.code));
    files
}

/// Returns the modules that a file declares for tests only.
fn test_modules(file: &SourceFile) -> Vec<Vec<String>> {
    let lines: Vec<&str> = file.code.lines().collect();
    let declarations = lines.windows(2).filter(|pair| pair[0].trim() == "#[cfg(test)]");
    let names = declarations.filter_map(|pair| {
        pair[1].trim().rsplit("mod ").next()?.strip_suffix(';').map(str::to_owned)
    });
    names.map(|name| [&file.module[..], &[name]].concat()).collect()
}

/// Removes comments, and the items and members that are compiled only for tests.
fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        if line.trim() == "#[cfg(test)]" || line.trim() == "#[test]" {
            // Skip to the end of the item: a line with its indentation that closes it.
            for line in lines.by_ref() {
                let is_its = line.len() - line.trim_start().len() == indent;
                if is_its && (line.ends_with(['}', ';', ',']) && !line.trim().starts_with("#[")) {
                    break;
                }
            }
        } else if !line.trim_start().starts_with("//") {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Returns the name after a keyword at the start of a line, without visibility and generics.
fn item_name<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let rest = line.strip_prefix(keyword)?.strip_prefix(' ')?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// Returns the type of an `impl` block without a trait that begins in this line.
fn impl_of(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("impl")?;
    if let Some(generics) = rest.strip_prefix('<') {
        let mut depth = 1;
        let end = generics.find(|c| {
            depth += match c {
                '<' => 1,
                '>' => -1,
                _ => 0,
            };
            depth == 0
        })?;
        rest = &generics[end + 1..];
    }
    if rest.contains(" for ") {
        return None;
    }
    let path = rest.trim_start().split(['<', ' ']).next()?;
    path.rsplit("::").next()
}

/// Compares counts with a maximum, except for those in the table of larger ones, which must be
/// exact.
fn assert_at_most(what: &str, max: usize, table: &[(&str, usize)], found: BTreeMap<String, usize>) {
    let larger: BTreeMap<String, usize> =
        found.into_iter().filter(|(_, count)| *count > max).collect();
    let known: BTreeMap<String, usize> =
        table.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    assert!(
        larger == known,
        "{what}: more than {max} in {larger:#?}, which differs from the table in this file. Split \
         what has grown; lower the number of what has become smaller."
    );
}

#[test]
fn types_have_few_methods() {
    let mut methods: BTreeMap<String, usize> = BTreeMap::new();
    for folder in crate_folders() {
        for file in source_files(&folder) {
            let mut owner = None;
            for line in file.code.lines() {
                if line.starts_with("impl") {
                    owner = impl_of(line).map(|name| format!("{}::{name}", name_of(&folder)));
                } else if line.starts_with('}') {
                    owner = None;
                } else if let Some(member) = line.strip_prefix("    ")
                    && let Some(owner) = &owner
                    && ["fn", "const fn", "async fn", "unsafe fn"]
                        .iter()
                        .any(|keyword| item_name(member, keyword).is_some())
                {
                    *methods.entry(owner.clone()).or_default() += 1;
                }
            }
        }
    }
    assert_at_most("methods of types", METHODS_MAX, LARGE_TYPES, methods);
}

#[test]
fn structs_have_few_fields() {
    let mut fields: BTreeMap<String, usize> = BTreeMap::new();
    for folder in crate_folders() {
        for file in source_files(&folder) {
            let mut owner = None;
            for line in file.code.lines() {
                if let Some(name) = item_name(line, "struct").filter(|_| line.ends_with('{')) {
                    owner = Some(file.full_name(&folder, name));
                } else if line.starts_with('}') {
                    owner = None;
                } else if let Some(member) = line.strip_prefix("    ")
                    && let Some(owner) = &owner
                    && !member.starts_with([' ', '#'])
                    && member.contains(": ")
                {
                    *fields.entry(owner.clone()).or_default() += 1;
                }
            }
        }
    }
    assert_at_most("fields of structs", FIELDS_MAX, LONG_STRUCTS, fields);
}

#[test]
fn few_files_lie_directly_in_src() {
    let mut loose = BTreeMap::new();
    for folder in crate_folders() {
        let files = source_files(&folder);
        let own = files.iter().filter(|file| file.module.len() == 1).count();
        loose.insert(name_of(&folder), own);
        // A file that no module declares is not compiled at all.
        for file in &files {
            let Some((name, parent)) = file.module.split_last() else { continue };
            let is_declared = files.iter().filter(|other| other.module == parent).any(|other| {
                other.code.lines().any(|line| item_name(line.trim(), "mod") == Some(name))
            });
            let is_binary = parent == ["bin"] || parent == ["src"];
            assert!(is_declared || is_binary, "{}: no module declares {}", name_of(&folder), name);
        }
    }
    assert_at_most("files directly in src", LOOSE_FILES_MAX, LOOSE_FILES, loose);
}

#[test]
fn modules_do_not_depend_on_each_other_in_circles() {
    let mut in_circles = BTreeMap::new();
    for folder in crate_folders() {
        let graph = ModuleGraph::new(&source_files(&folder));
        let circles = graph.circles();
        println!("{}: {circles:?}", name_of(&folder));
        in_circles.insert(name_of(&folder), circles.iter().map(Vec::len).sum());
    }
    assert_at_most("modules in circles", 0, CIRCLES, in_circles);
}

/// Which modules of a crate use which others. A module and those inside it are one house: uses
/// between them do not count.
struct ModuleGraph {
    modules: Vec<Vec<String>>,
    /// For each module, the indexes of those that it uses.
    uses: Vec<BTreeSet<usize>>,
}

impl ModuleGraph {
    fn new(files: &[SourceFile]) -> Self {
        let modules: Vec<_> = files.iter().map(|file| file.module.clone()).collect();
        let mut exports = BTreeMap::new();
        for file in files {
            for (path, name) in use_paths(&file.code, true) {
                if let Some(path) = absolute(&path, &file.module, &modules) {
                    exports.insert([&file.module[..], &[name]].concat(), path);
                }
            }
        }
        let uses = files.iter().map(|file| {
            let paths = use_paths(&file.code, false).into_iter().map(|(path, _)| path);
            let paths = paths.chain(inline_paths(&file.code));
            let targets = paths.filter_map(|path| {
                let path = absolute(&path, &file.module, &modules)?;
                let target = module_of(&path, &modules, &exports)?;
                let other = &modules[target];
                let is_own = other.starts_with(&file.module) || file.module.starts_with(other);
                (!is_own).then_some(target)
            });
            targets.collect()
        });
        Self { uses: uses.collect(), modules }
    }

    /// Returns the groups of modules in which each can be reached from each other.
    fn circles(&self) -> Vec<Vec<String>> {
        let reachable: Vec<BTreeSet<usize>> =
            (0..self.modules.len()).map(|from| self.reachable(from)).collect();
        let mut groups: BTreeMap<Vec<usize>, Vec<String>> = BTreeMap::new();
        for at in (0..self.modules.len()).filter(|at| reachable[*at].contains(at)) {
            let group = reachable[at].iter().filter(|to| reachable[**to].contains(&at));
            groups.entry(group.copied().collect()).or_default().push(self.modules[at].join("::"));
        }
        groups.into_values().collect()
    }

    fn reachable(&self, from: usize) -> BTreeSet<usize> {
        let (mut found, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            next.extend(self.uses[at].iter().copied().filter(|to| found.insert(*to)));
        }
        found
    }
}

/// Returns the paths in `use` items, each with the name that it introduces: those that are
/// re-exported, or those that are not.
fn use_paths(code: &str, are_exported: bool) -> Vec<(Vec<String>, String)> {
    let mut paths = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("use ") {
        let line = rest[..at].rfind('\n').map_or(0, |end| end + 1);
        let before = rest[line..at].trim();
        let Some(end) = rest[at..].find(';') else { break };
        let is_item = before.is_empty() || before.starts_with("pub");
        if is_item && before.starts_with("pub") == are_exported {
            let tree = rest[at + 4..at + end].split_whitespace().collect::<Vec<_>>().join(" ");
            flatten(&mut Vec::new(), &tree, &mut paths);
        }
        rest = &rest[at + if is_item { end } else { 4 }..];
    }
    paths
}

fn flatten(prefix: &mut Vec<String>, tree: &str, paths: &mut Vec<(Vec<String>, String)>) {
    let (mut depth, mut start) = (0, 0);
    let ends = tree.char_indices().filter(|(_, c)| {
        depth += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        *c == ',' && depth == 0
    });
    let ends: Vec<usize> = ends.map(|(at, _)| at).chain([tree.len()]).collect();
    for end in ends {
        let branch = tree[start..end].trim();
        start = (end + 1).min(tree.len());
        if branch.is_empty() {
            continue; // After a comma at the end.
        }
        let (path, inner) = match branch.split_once('{') {
            Some((path, inner)) => (path.trim_end_matches("::"), inner.strip_suffix('}')),
            None => (branch, None),
        };
        let (path, alias) = path.split_once(" as ").unwrap_or((path, ""));
        let parts: Vec<String> =
            path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let length = prefix.len();
        prefix.extend(parts);
        match inner {
            Some(inner) => flatten(prefix, inner, paths),
            None => {
                if prefix.len() > 1 && prefix.last().is_some_and(|last| last == "self") {
                    prefix.pop();
                }
                let last = prefix.last().cloned().unwrap_or_default();
                let name = if alias.is_empty() { last } else { alias.to_owned() };
                paths.push((prefix.clone(), name));
            }
        }
        prefix.truncate(length);
    }
}

/// Returns the paths outside of `use` items that begin at the crate or at the parent module.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c: char| !is_word(c));
    let paths = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
    paths.map(|path| path.split("::").map(str::to_owned).collect()).collect()
}

/// Returns a path below the crate's root; `None` for paths into other crates.
fn absolute(path: &[String], from: &[String], modules: &[Vec<String>]) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let first = path.first()?;
    Some(match first.as_str() {
        "crate" => path[1..].to_vec(),
        "self" => [from, &path[1..]].concat(),
        "super" => [&from[..from.len().checked_sub(supers)?], &path[supers..]].concat(),
        _ if modules.contains(&[from, std::slice::from_ref(first)].concat()) => {
            [from, path].concat()
        }
        _ => return None,
    })
}

/// Returns the module in which a path's item is defined, as far as re-exports tell.
fn module_of(
    path: &[String],
    modules: &[Vec<String>],
    exports: &BTreeMap<Vec<String>, Vec<String>>,
) -> Option<usize> {
    let mut path = path.to_vec();
    for _ in 0..8 {
        let exported = (1..=path.len()).rev().find(|length| exports.contains_key(&path[..*length]));
        let Some(length) = exported else { break };
        path = [&exports[&path[..length]][..], &path[length..]].concat();
    }
    let length =
        (0..=path.len()).rev().find(|length| modules.iter().any(|m| m == &path[..*length]))?;
    modules.iter().position(|module| module == &path[..length])
}
