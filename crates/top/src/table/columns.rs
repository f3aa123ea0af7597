//! The columns that the user has chosen for each screen, and the file that stores them.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _, Write as _},
    path::Path,
    str::FromStr,
};

use super::ScreenKind;

/// The columns to show on each screen. A screen without a choice shows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnChoices(BTreeMap<&'static str, Vec<&'static str>>);

/// The columns chosen for one screen, as in `activity=pid,user,query`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnChoice {
    screen: &'static str,
    columns: Vec<&'static str>,
}

/// The reason why a text is not a choice of columns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseColumnsError {
    /// The text has no `=`, or no column after it.
    #[error("write SCREEN=COLUMN,COLUMN")]
    Format,
    /// No screen has this name.
    #[error("there is no screen {0:?}")]
    Screen(String),
    /// The screen has no column with this name.
    #[error("{screen} has no column {column:?}; it has {columns}")]
    Column {
        /// Name of the screen.
        screen: &'static str,
        /// The unknown name.
        column: String,
        /// Names of the screen's columns.
        columns: String,
    },
}

/// Maximum size in bytes of a file that is read: many times what is written.
const FILE_BYTES_MAX: u64 = 64 << 10;

impl FromStr for ColumnChoice {
    type Err = ParseColumnsError;

    fn from_str(text: &str) -> Result<Self, ParseColumnsError> {
        let (screen, names) = text.split_once('=').ok_or(ParseColumnsError::Format)?;
        let screen = ScreenKind::from_name(screen.trim())
            .ok_or_else(|| ParseColumnsError::Screen(screen.trim().to_owned()))?;
        let known: Vec<&'static str> =
            screen.all_columns().iter().map(|column| column.name).collect();
        let mut columns = Vec::new();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let found = known.iter().find(|known| **known == name);
            columns.push(*found.ok_or_else(|| ParseColumnsError::Column {
                screen: screen.name(),
                column: name.to_owned(),
                columns: known.join(", "),
            })?);
        }
        if columns.is_empty() {
            return Err(ParseColumnsError::Format);
        }
        Ok(Self { screen: screen.name(), columns })
    }
}

impl ColumnChoices {
    /// Adds a choice, which replaces an earlier one for the same screen.
    pub fn add(&mut self, choice: ColumnChoice) {
        self.0.insert(choice.screen, choice.columns);
    }

    /// Sets the columns of a screen; all of them remove the choice.
    pub(crate) fn set(&mut self, screen: ScreenKind, columns: Vec<&'static str>) {
        if screen.all_columns().iter().all(|column| columns.contains(&column.name)) {
            self.0.remove(screen.name());
        } else {
            self.0.insert(screen.name(), columns);
        }
    }

    /// Whether a column of a screen is to be shown.
    pub(crate) fn is_visible(&self, screen: ScreenKind, column: &str) -> bool {
        self.0.get(screen.name()).is_none_or(|columns| columns.contains(&column))
    }

    /// Reads choices from a file; none if it does not exist. Also returns a description of each
    /// line that cannot be used, such as one of a later version.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn read(path: &Path) -> io::Result<(Self, Vec<String>)> {
        let text = read_text(path)?.unwrap_or_default();
        let (mut choices, mut problems) = (Self::default(), Vec::new());
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.parse() {
                Ok(choice) => choices.add(choice),
                Err(error) => problems.push(format!("{}: {error}", path.display())),
            }
        }
        Ok((choices, problems))
    }

    /// Saves the columns of one screen in a file, which is replaced atomically; its other lines
    /// stay. Missing folders are created. Only the owner may read the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is too long, it or a folder cannot be written.
    pub fn save(&self, screen: ScreenKind, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            howdah_files::create_dir_all(folder)?;
        }
        let saved = read_text(path)?;
        let mut text =
            saved.unwrap_or_else(|| "# Columns of `howdah top`, saved by its key v.\n".to_owned());
        let is_of_screen =
            |line: &str| line.split_once('=').is_some_and(|(name, _)| name.trim() == screen.name());
        text = text
            .lines()
            .filter(|line| !is_of_screen(line))
            .map(|line| format!("{line}\n"))
            .collect();
        if let Some(columns) = self.0.get(screen.name()) {
            text.push_str(&format!("{}={}\n", screen.name(), columns.join(",")));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let temporary = path.with_file_name(name);
        let write = || {
            let mut file = howdah_files::create_new(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, path)
        };
        write().inspect_err(|_| {
            // The file that could not be completed is useless.
            let _ = fs::remove_file(&temporary);
        })
    }
}

/// Returns the text of a file; `None` if it does not exist.
fn read_text(path: &Path) -> io::Result<Option<String>> {
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    // The rest of a longer file would be lost when it is saved.
    if text.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("the file is longer than {} KiB", FILE_BYTES_MAX >> 10);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn choices_are_validated() {
        let choice: ColumnChoice = "activity = pid, query".parse().unwrap();
        assert_eq!(choice, ColumnChoice { screen: "activity", columns: vec!["pid", "query"] });
        let error = |text: &str| text.parse::<ColumnChoice>().unwrap_err().to_string();
        assert_eq!(error("activity"), "write SCREEN=COLUMN,COLUMN");
        assert_eq!(error("activity=,"), "write SCREEN=COLUMN,COLUMN");
        assert_eq!(error("sessions=pid"), "there is no screen \"sessions\"");
        assert!(error("wal=pid").starts_with("wal has no column \"pid\"; it has "));
        for screen in ScreenKind::all() {
            let names: Vec<_> = screen.all_columns().iter().map(|column| column.name).collect();
            let text = format!("{}={}", screen.name(), names.join(","));
            text.parse::<ColumnChoice>().unwrap();
        }
    }

    #[test]
    fn saved_choices_are_read_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("howdah/top-columns");
        assert_eq!(ColumnChoices::read(&path).unwrap(), Default::default());
        let mut choices = ColumnChoices::default();
        choices.add("activity=pid,query".parse().unwrap());
        choices.set(ScreenKind::Waits, vec!["event", "sessions"]);
        choices.save(ScreenKind::Activity, &path).unwrap();
        choices.save(ScreenKind::Waits, &path).unwrap();
        choices.save(ScreenKind::Waits, &path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert_eq!(ColumnChoices::read(&path).unwrap(), (choices.clone(), Vec::new()));
        let long = format!("# {}\nwaits=event\n", "a".repeat(64 << 10));
        let long_path = folder.path().join("long");
        fs::write(&long_path, &long).unwrap();
        let error = choices.save(ScreenKind::Waits, &long_path).unwrap_err();
        assert_eq!(error.to_string(), "the file is longer than 64 KiB");
        assert_eq!(fs::read_to_string(&long_path).unwrap(), long);
        assert!(choices.is_visible(ScreenKind::Activity, "pid"));
        assert!(!choices.is_visible(ScreenKind::Activity, "user"));
        assert!(choices.is_visible(ScreenKind::Blocking, "user"), "no choice for this screen");
        let all = ScreenKind::Waits.all_columns().iter().map(|column| column.name).collect();
        choices.set(ScreenKind::Waits, all);
        assert!(choices.is_visible(ScreenKind::Waits, "share"));
        choices.save(ScreenKind::Waits, &path).unwrap();
        assert!(ColumnChoices::read(&path).unwrap().0.is_visible(ScreenKind::Waits, "share"));
        // A line of a later version is reported, and the others are used.
        fs::write(&path, "activity=pid\nlater=x\n\n# a comment\n").unwrap();
        let (read, problems) = ColumnChoices::read(&path).unwrap();
        assert!(!read.is_visible(ScreenKind::Activity, "user"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        // Saving one screen changes no other line.
        choices.add("blocking=pid".parse().unwrap());
        choices.add("activity=user".parse().unwrap());
        choices.save(ScreenKind::Blocking, &path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "activity=pid\nlater=x\n\n# a comment\nblocking=pid\n");
        let error =
            choices.save(ScreenKind::Activity, Path::new("/proc/howdah/top-columns")).unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::AlreadyExists);
    }
}
