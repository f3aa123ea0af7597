//! Selects a part of an image: by database, relation and usage count.

use std::{collections::BTreeSet, fmt};

use super::{CacheImage, CachedFork, Relation, RelationName};

/// The part of an image to load, convert or show. The default selects all pages.
///
/// A page is selected if its database matches one of [`databases`](Self::databases) and its
/// relation one of [`relations`](Self::relations) (an empty list matches all), its relation matches
/// none of [`excluded`](Self::excluded), and its usage count is at least
/// [`min_usage`](Self::min_usage).
///
/// The image stores which table a TOAST table and its index belong to, so these match by the name
/// of the table. It does not store that of other indexes, so these match by their own names. A
/// pattern without a schema matches relations in all schemas but the system's: `pg_catalog`,
/// `information_schema`, and others that start with `pg_`. Shared catalogs belong to no database,
/// so they are selected only without database patterns. Relations and databases whose names are
/// not in the image match no pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Patterns of databases. They have no schema: a dot is an ordinary character.
    pub databases: Vec<DatabasePattern>,
    /// Patterns of relations to select.
    pub relations: Vec<RelationPattern>,
    /// Patterns of relations to exclude, even if selected by `relations`.
    pub excluded: Vec<RelationPattern>,
    /// Minimum usage count, 0 to 5.
    pub min_usage: u8,
}

/// A pattern for the names of databases; see [`NameGlob`] for its wildcards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabasePattern(NameGlob);

/// A pattern for the names of relations, optionally with a schema before the first dot that is not
/// in quotes; see [`NameGlob`] for its wildcards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationPattern {
    schema: Option<NameGlob>,
    name: NameGlob,
}

/// A pattern as in psql: `*` stands for any characters, `?` for one, and upper case is lowered. In
/// double quotes, all characters stand for themselves, and two quotes for one. Unlike in psql,
/// other characters of regular expressions stand for themselves, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameGlob {
    pattern: String,
    parts: Vec<GlobPart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GlobPart {
    Char(char),
    AnyChar,
    AnyChars,
}

/// An image with the selected pages, and the number of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedImage {
    /// The image with the selected pages only. Its databases are those of the original.
    pub image: CacheImage,
    /// Number of pages that were not selected.
    pub not_selected: u64,
}

/// A pattern matches nothing in the image, so it is probably misspelt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} in the image matches {pattern}")]
pub struct NoMatch {
    /// The kind of name: `database` or `relation`.
    pub kind: &'static str,
    /// The pattern as it was written.
    pub pattern: String,
    /// Names in the image that resemble the pattern, the nearest first; all of them if there are
    /// few. At most [`NEAR_NAMES_MAX`].
    pub near_names: Vec<String>,
    /// Whether the image contains no names of this kind at all, as one from `autoprewarm.blocks`.
    pub is_nameless: bool,
}

/// Maximum length of [`NoMatch::near_names`].
pub const NEAR_NAMES_MAX: usize = 5;

impl Selection {
    /// Whether all pages are selected.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the selected part of an image.
    ///
    /// # Errors
    ///
    /// A pattern matches no database or relation of the image. Databases without pages in the image
    /// do not count. Relations count whatever their database, so that patterns can be combined.
    pub fn select(&self, image: &CacheImage) -> Result<SelectedImage, NoMatch> {
        self.check_patterns(image)?;
        let relations = image.relations.iter().filter(|relation| self.selects(image, relation));
        let relations = relations.filter_map(|relation| self.select_pages(relation)).collect();
        let (origin, databases) = (image.origin.clone(), image.databases.clone());
        let selected = CacheImage { origin, databases, relations };
        let not_selected = image.page_count() - selected.page_count();
        Ok(SelectedImage { image: selected, not_selected })
    }

    /// Whether pages of this relation may be selected, whatever their usage counts.
    pub fn selects(&self, image: &CacheImage, relation: &Relation) -> bool {
        let database = image.database_name(relation.file.database);
        let matches = |pattern: &RelationPattern| pattern.matches(relation);
        let is_in_database = self.databases.is_empty()
            || database.is_some_and(|name| self.databases.iter().any(|it| it.matches(name)));
        is_in_database
            && (self.relations.is_empty() || self.relations.iter().any(matches))
            && !self.excluded.iter().any(matches)
    }

    /// Returns the relation with its sufficiently used pages, or `None` if there are none.
    fn select_pages(&self, relation: &Relation) -> Option<Relation> {
        if self.min_usage == 0 {
            return Some(relation.clone());
        }
        let is_used = |fork: &CachedFork| {
            let pages = fork.pages.iter().filter(|page| page.usage >= self.min_usage).collect();
            CachedFork { fork: fork.fork, length: fork.length, pages }
        };
        let forks: Vec<_> = relation.forks.iter().map(is_used).collect();
        let forks: Vec<_> = forks.into_iter().filter(|fork| !fork.pages.is_empty()).collect();
        (!forks.is_empty()).then(|| Relation { forks, ..relation.clone() })
    }

    /// Checks that each pattern matches something in the image.
    ///
    /// # Errors
    ///
    /// See [`Self::select`].
    pub fn check_patterns(&self, image: &CacheImage) -> Result<(), NoMatch> {
        let databases: BTreeSet<&str> = image
            .relations
            .iter()
            .filter_map(|relation| image.database_name(relation.file.database))
            .collect();
        for pattern in &self.databases {
            if !databases.iter().any(|name| pattern.matches(name)) {
                let names = databases.iter().map(|name| (*name).to_owned());
                return Err(NoMatch::new("database", pattern.to_string(), names));
            }
        }
        for pattern in self.relations.iter().chain(&self.excluded) {
            if !image.relations.iter().any(|relation| pattern.matches(relation)) {
                let names = image.relations.iter().filter_map(|relation| {
                    let name = qualified(relation.name.as_ref()?);
                    (pattern.schema.is_some() || !is_system_schema(&name.schema))
                        .then(|| name.to_string())
                });
                let names: BTreeSet<String> = names.collect();
                return Err(NoMatch::new("relation", pattern.to_string(), names.into_iter()));
            }
        }
        Ok(())
    }
}

impl NoMatch {
    fn new(kind: &'static str, pattern: String, names: impl Iterator<Item = String>) -> Self {
        let requested = last_part(&pattern).to_lowercase();
        let mut names: Vec<_> = names
            .map(|name| (edit_distance(&requested, &last_part(&name).to_lowercase()), name))
            .collect();
        let is_nameless = names.is_empty();
        names.sort();
        if names.len() > NEAR_NAMES_MAX {
            // A name that differs by half of its characters is hardly a misspelling.
            let limit = requested.chars().count().div_ceil(2);
            names.retain(|(distance, _)| *distance <= limit);
            names.truncate(NEAR_NAMES_MAX);
        }
        let near_names = names.into_iter().map(|(_, name)| name).collect();
        Self { kind, pattern, near_names, is_nameless }
    }
}

/// Returns a name or pattern without schema and quotes.
fn last_part(name: &str) -> &str {
    name.split_once('.').map_or(name, |(_, name)| name).trim_matches('"')
}

/// Returns the number of characters to insert, remove or replace to get from one text to the other
/// (Levenshtein distance). A wildcard costs as any other character. Only the first
/// [`COMPARED_CHARS_MAX`] characters are compared.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().take(COMPARED_CHARS_MAX).collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, from) in from.chars().take(COMPARED_CHARS_MAX).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, to) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

const COMPARED_CHARS_MAX: usize = 64;

impl DatabasePattern {
    /// Parses a pattern; any text is one.
    pub fn new(pattern: &str) -> Self {
        let mut glob = NameGlob { pattern: pattern.to_owned(), parts: Vec::new() };
        for token in tokens(pattern) {
            glob.parts.push(token.part);
        }
        Self(glob)
    }

    /// Whether a database with this name matches.
    pub fn matches(&self, database: &str) -> bool {
        self.0.matches(database)
    }
}

impl RelationPattern {
    /// Parses a pattern; any text is one.
    pub fn new(pattern: &str) -> Self {
        let mut schema = None;
        let mut name = NameGlob { pattern: pattern.to_owned(), parts: Vec::new() };
        for token in tokens(pattern) {
            if token.is_separator && schema.is_none() {
                let parts = std::mem::take(&mut name.parts);
                schema = Some(NameGlob { pattern: String::new(), parts });
            } else {
                name.parts.push(token.part);
            }
        }
        Self { schema, name }
    }

    /// Whether a relation matches by its own name or, for TOAST, that of its table. A relation
    /// without a name does not.
    pub fn matches(&self, relation: &Relation) -> bool {
        let Some(name) = relation.name.as_ref().map(qualified) else { return false };
        let is_in_schema = match &self.schema {
            Some(schema) => schema.matches(&name.schema),
            None => !is_system_schema(&name.schema),
        };
        is_in_schema && self.name.matches(&name.name)
    }
}

/// Returns the name of a relation, or of the table that its TOAST belongs to.
fn qualified(name: &RelationName) -> &super::QualifiedName {
    match name {
        RelationName::Own(name) | RelationName::Toast(name) | RelationName::ToastIndex(name) => {
            name
        }
    }
}

fn is_system_schema(schema: &str) -> bool {
    schema.starts_with("pg_") || schema == "information_schema"
}

/// A character of a pattern, with its meaning.
struct PatternToken {
    part: GlobPart,
    /// Whether it is a dot outside quotes.
    is_separator: bool,
}

fn tokens(pattern: &str) -> Vec<PatternToken> {
    let (mut tokens, mut is_quoted) = (Vec::new(), false);
    let mut chars = pattern.chars().peekable();
    while let Some(char) = chars.next() {
        let part = match char {
            '"' if is_quoted && chars.peek() == Some(&'"') => {
                chars.next();
                GlobPart::Char('"')
            }
            '"' => {
                is_quoted = !is_quoted;
                continue;
            }
            '*' if !is_quoted => GlobPart::AnyChars,
            '?' if !is_quoted => GlobPart::AnyChar,
            char if is_quoted => GlobPart::Char(char),
            char => {
                let is_separator = char == '.';
                tokens.extend(
                    char.to_lowercase()
                        .map(|char| PatternToken { part: GlobPart::Char(char), is_separator }),
                );
                continue;
            }
        };
        tokens.push(PatternToken { part, is_separator: false });
    }
    tokens
}

impl NameGlob {
    /// Whether the whole name matches. Takes at most (length of the pattern) × (length of the name)
    /// steps.
    fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut part) = (0, 0);
        // The last `*`, and the end of the characters it stands for at present.
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.parts.get(part) {
                Some(GlobPart::AnyChars) => {
                    star = Some((part, at));
                    part += 1;
                }
                Some(GlobPart::AnyChar) => (at, part) = (at + 1, part + 1),
                Some(GlobPart::Char(char)) if *char == name[at] => (at, part) = (at + 1, part + 1),
                _ => {
                    // Let the last `*` stand for one character more.
                    let Some((star_part, end)) = star else { return false };
                    star = Some((star_part, end + 1));
                    (at, part) = (end + 1, star_part + 1);
                }
            }
        }
        self.parts[part..].iter().all(|part| *part == GlobPart::AnyChars)
    }
}

impl fmt::Display for DatabasePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.pattern)
    }
}

impl fmt::Display for RelationPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name.pattern)
    }
}

#[cfg(test)]
mod tests;
