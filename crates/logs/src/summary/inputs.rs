//! The files that were read, their order, and the files that were left out.

use howdah_log_input::{Compression, Envelope};
use serde::Serialize;

/// The inputs of an import: the files that were read, in order, and those that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inputs {
    /// The rule that ordered the files.
    pub order: FileOrder,
    /// The files, in reading order.
    pub files: Vec<LogFile>,
    /// Files that were selected, but left out.
    pub left_out: Vec<OmittedInput>,
}

impl Inputs {
    /// Returns the number of files that are captures of other tools.
    pub(crate) fn other_captures(&self) -> u64 {
        let is_limited =
            |file: &&LogFile| file.envelopes.iter().any(|it| !it.limitation().is_empty());
        self.files.iter().filter(is_limited).count() as u64
    }

    /// Returns what the user should know about the inputs, one string per line: the order of the
    /// files, their compression and envelopes, and files that were skipped. Empty if nothing is
    /// notable.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.order == FileOrder::ByFirstTime && self.files.len() > 1 {
            let (first, last) = (&self.files[0].name, &self.files[self.files.len() - 1].name);
            lines.push(format!(
                "{} files in the order of their first times: {first} to {last}",
                self.files.len()
            ));
        }
        let mut counts: Vec<(&LogFile, usize)> = Vec::new();
        for file in self.files.iter().filter(|file| !file.has_no_layers()) {
            match counts.iter_mut().find(|(known, _)| known.has_same_layers(file)) {
                Some((_, count)) => *count += 1,
                None => counts.push((file, 1)),
            }
        }
        for (file, count) in counts {
            let others = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            lines.push(format!("{}{others}: {}", file.name, file.describe_layers()));
            for envelope in &file.envelopes {
                if !envelope.limitation().is_empty() {
                    lines.push(format!("{} lack {}", envelope.as_str(), envelope.limitation()));
                }
            }
        }
        for OmittedInput { name, instead } in &self.left_out {
            lines.push(if name == instead {
                format!("{name} was given twice and read once")
            } else {
                format!("{name} was skipped: {instead} contains the same log")
            });
        }
        lines
    }
}

impl LogFile {
    fn has_no_layers(&self) -> bool {
        self.compression.is_none() && self.envelopes.is_empty()
    }

    fn has_same_layers(&self, other: &Self) -> bool {
        (self.compression, &self.envelopes) == (other.compression, &other.envelopes)
    }

    /// Describes the layers around the log, outermost first.
    fn describe_layers(&self) -> String {
        let compression = self.compression.map(Compression::as_str);
        let envelopes = self.envelopes.iter().map(|envelope| envelope.as_str());
        compression.into_iter().chain(envelopes).collect::<Vec<_>>().join(" around ")
    }
}

/// The rule that ordered the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOrder {
    /// Files are read in the given order, because there is only one, or one of them is a pipe.
    #[default]
    AsGiven,
    /// Files are sorted by the first time in each.
    ByFirstTime,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogFile {
    /// Path, as given or as found in a directory.
    pub name: String,
    /// `None` for a file that is not compressed.
    pub compression: Option<Compression>,
    /// The envelopes around its log, outermost first.
    pub envelopes: Vec<Envelope>,
}

/// A file that was selected, but left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OmittedInput {
    /// Path, as given or as found in a directory.
    pub name: String,
    /// Path of the file that was read instead: the same file if it was given twice, the same log in
    /// another format, or an equal or longer copy of it.
    pub instead: String,
}

#[test]
fn inputs_are_reported() {
    let file = |name: &str, compression, envelopes: &[Envelope]| LogFile {
        name: name.to_owned(),
        compression,
        envelopes: envelopes.to_vec(),
    };
    let inputs = Inputs {
        order: FileOrder::ByFirstTime,
        files: vec![
            file("a.gz", Some(Compression::Gzip), &[Envelope::Cri, Envelope::Json]),
            file("b.gz", Some(Compression::Gzip), &[Envelope::Cri, Envelope::Json]),
            file("c", None, &[]),
        ],
        left_out: vec![OmittedInput { name: "c.log".to_owned(), instead: "c".to_owned() }],
    };
    let expected = [
        "3 files in the order of their first times: a.gz to c",
        "a.gz and 1 more: gzip around a container log (CRI) around JSON envelopes",
        "c.log was skipped: c contains the same log",
    ];
    assert_eq!(inputs.lines(), expected);
    let file = file("x", None, &[Envelope::PgreplayGo]);
    let inputs = Inputs { files: vec![file], ..Inputs::default() };
    assert!(inputs.lines()[1].contains("lack durations"));
}
