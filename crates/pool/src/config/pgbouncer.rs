//! A `pgbouncer.ini` into [`Config`].
//!
//! Each key is one row of a table: what it does here, or why nothing is done about it, which becomes
//! a warning. A key without a row is one that PgBouncer does not know either, and an error. Source:
//! the manual of PgBouncer 1.25, config(5).

mod entries;
mod import;
mod keys;
mod notes;
#[cfg(test)]
mod page;

use std::path::{Path, PathBuf};

use super::{
    Auth, AuthMethod, Config, Listen, ShutdownMode,
    file::{FileContents, Places, Remark, Wrong, read_text},
    ini::{self, Line},
};

pub use self::{
    entries::{DATABASE_KEYS, USER_KEYS},
    keys::{Effect, KEYS, Key},
};

/// Deepest nesting of `%include`.
const INCLUDES_MAX: usize = 10;

/// The sections there are.
const SECTIONS: [&str; 4] = ["databases", "pgbouncer", "users", "peers"];

pub(super) fn is_section(name: &str) -> bool {
    SECTIONS.contains(&name)
}

/// Reads a file and what it includes.
///
/// # Errors
///
/// Its structure is broken: then nothing else is said of it.
pub(super) fn read(text: &str, file: &Path) -> Result<FileContents, Wrong> {
    let Reader { config, warnings, wrong, mistaken, places, is_broken, .. } =
        Reader::read_all(text, file);
    match is_broken {
        true => Err(Wrong(wrong)),
        false => {
            let places = Places::new(file, places);
            Ok(FileContents { config, warnings, wrong, mistaken, places })
        }
    }
}

/// What PgBouncer does where `howdah.toml` has another default.
fn defaults() -> Config {
    Config {
        listen: Listen { addresses: Vec::new(), ..Listen::default() },
        auth: Auth { method: AuthMethod::Md5, ..Auth::default() },
        shutdown_mode: ShutdownMode::WaitForClients,
        allow_cleartext_password: true,
        ..Config::default()
    }
}

/// What a key's value does.
type Outcome = Result<Option<&'static str>, String>;

struct Reader {
    config: Config,
    section: Option<&'static str>,
    /// Keys of section `[pgbouncer]` that were there.
    keys: Vec<&'static str>,
    warnings: Vec<Remark>,
    wrong: Vec<Remark>,
    /// Keys of `[pool]` that could not be read.
    mistaken: Vec<String>,
    /// Keys of `[pool]` that were there, with file and line.
    places: Vec<(String, PathBuf, usize)>,
    /// Whether there is a line, a section or a file of which nobody knows what it would have set.
    is_broken: bool,
}

impl Reader {
    fn read(text: &str, file: &Path) -> Result<Self, Wrong> {
        let reader = Self::read_all(text, file);
        if reader.wrong.is_empty() { Ok(reader) } else { Err(Wrong(reader.wrong)) }
    }

    fn read_all(text: &str, file: &Path) -> Self {
        let mut reader = Self {
            config: defaults(),
            section: None,
            keys: Vec::new(),
            warnings: Vec::new(),
            wrong: Vec::new(),
            mistaken: Vec::new(),
            places: Vec::new(),
            is_broken: false,
        };
        reader.file(text, file, 0);
        reader
    }

    fn file(&mut self, text: &str, file: &Path, depth: usize) {
        for (number, line) in ini::lines(text) {
            let at = |key: &str, text: &str| Remark::new(file, number, key, text);
            match line {
                Line::Section(name) => {
                    self.section = SECTIONS.into_iter().find(|known| *known == name);
                    if self.section.is_none() {
                        self.is_broken = true;
                        let known = SECTIONS.join(", ");
                        self.wrong.push(at(name, &format!("no such section (known: {known})")));
                    }
                }
                Line::Pair { key, value } => {
                    let ours = self.ours(key);
                    match self.pair(key, value) {
                        Ok(None) => {}
                        Ok(Some(warning)) => self.warnings.push(at(key, warning)),
                        Err(why) => {
                            self.is_broken |= self.section.is_none();
                            // Of an entry, any of its keys.
                            let is_entry = matches!(self.section, Some("databases" | "users"));
                            let any_of = |ours| if is_entry { format!("{ours}.*") } else { ours };
                            self.mistaken.extend(ours.clone().map(any_of));
                            self.wrong.push(at(key, &why));
                        }
                    }
                    self.places.extend(ours.map(|ours| (ours, file.to_owned(), number)));
                }
                Line::Include(name) => {
                    if let Err(why) = self.include(name, file, depth) {
                        self.is_broken = true;
                        self.wrong.push(at("%include", &why));
                    }
                }
                Line::Broken(why) => {
                    self.is_broken = true;
                    self.wrong.push(at("", why));
                }
            }
        }
    }

    /// Reads another file as if it stood here. A relative name is looked for beside the file that
    /// names it.
    fn include(&mut self, name: &str, file: &Path, depth: usize) -> Result<(), String> {
        if depth >= INCLUDES_MAX {
            return Err(format!("files include each other more than {INCLUDES_MAX} deep"));
        }
        let path = file.parent().unwrap_or(Path::new("")).join(name);
        let text =
            read_text(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        self.file(&text, &path, depth + 1);
        Ok(())
    }

    /// The key of `[pool]` that a pair sets; of one that nobody knows, the one that was probably meant.
    fn ours(&self, key: &str) -> Option<String> {
        match self.section? {
            section @ ("databases" | "users") => {
                Some(format!("{section}.{}", entries::unquoted(key)))
            }
            "pgbouncer" => match keys::nearest(key, KEYS.iter().map(|known| known.name)) {
                Some(name) => KEYS.iter().find_map(|known| match known.effect {
                    Effect::Sets(ours, _) if known.name == name => Some(ours.to_owned()),
                    _ => None,
                }),
                None => None,
            },
            _ => None,
        }
    }

    fn pair(&mut self, key: &str, value: &str) -> Outcome {
        let config = &mut self.config;
        match self.section {
            Some("databases") => entries::database(config, key, value),
            Some("users") => entries::user(config, key, value),
            Some("peers") => {
                Ok(Some("peers are not there: cancel requests reach their process only"))
            }
            Some(_) => {
                self.keys.extend(KEYS.iter().map(|known| known.name).find(|name| *name == key));
                keys::apply(config, key, value)
            }
            None => Err("stands in no section, or in one that is unknown".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
