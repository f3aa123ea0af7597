//! The commands and links of the README and the book.

mod run;
mod world;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{howdah, text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// All pages of the project, with their paths from the root.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages = Vec::new();
    let mut folders = vec![root().join("docs"), root().join("bench")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "md") {
                pages.push(entry);
            }
        }
    }
    let others = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "deploy/helm/howdah/README.md"];
    pages.extend(others.map(|page| root().join(page)));
    let read = |page: PathBuf| {
        let text = fs::read_to_string(&page).unwrap();
        (page.strip_prefix(root()).unwrap().to_owned(), text)
    };
    let mut pages: Vec<_> = pages.into_iter().map(read).collect();
    pages.sort();
    pages
}

/// Whether a page is for users, and not for developers.
fn is_for_users((page, _): &(PathBuf, String)) -> bool {
    page.starts_with("docs/src") || page == Path::new("README.md")
}

/// The shell blocks of a page, continuation lines joined.
fn shell_blocks(page: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut is_shell = false;
    for line in page.replace("\\\n", " ").lines() {
        match line.trim_start().strip_prefix("```") {
            Some(language) => {
                is_shell = language == "sh";
                if is_shell {
                    blocks.push(String::new());
                }
            }
            None if is_shell => {
                let block = blocks.last_mut().unwrap();
                block.push_str(line);
                block.push('\n');
            }
            None => {}
        }
    }
    blocks
}

/// Splits a line into its simple commands, each a list of words without redirections and comments.
/// Understands quotes and the operators that the pages use.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut chars = line.chars().peekable();
    let mut is_redirected = false;
    let push =
        |word: &mut Option<String>, is_redirected: &mut bool, commands: &mut Vec<Vec<String>>| {
            if let Some(word) = word.take()
                && !std::mem::take(is_redirected)
            {
                commands.last_mut().unwrap().push(word);
            }
        };
    while let Some(char) = chars.next() {
        match char {
            '#' if word.is_none() => break,
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                word.extend(chars.by_ref().take_while(|next| *next != char));
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            ' ' | '\t' => push(&mut word, &mut is_redirected, &mut commands),
            '>' | '<' => {
                // The number of a descriptor belongs to the operator.
                if word
                    .as_deref()
                    .is_some_and(|word| word.chars().all(|char| char.is_ascii_digit()))
                {
                    word = None;
                }
                push(&mut word, &mut is_redirected, &mut commands);
                let is_operator = |next: &char| matches!(next, '>' | '<' | '&');
                std::iter::from_fn(|| chars.next_if(is_operator)).for_each(drop);
                is_redirected = true;
            }
            '|' | '&' | ';' | '(' | ')' => {
                push(&mut word, &mut is_redirected, &mut commands);
                commands.push(Vec::new());
            }
            _ => word.get_or_insert_default().push(char),
        }
    }
    push(&mut word, &mut is_redirected, &mut commands);
    commands.retain(|command| !command.is_empty());
    commands
}

/// The arguments of `howdah`, if the command runs it.
fn arguments(command: &[String]) -> Option<&[String]> {
    const BEFORE: [&str; 8] = ["sudo", "time", "exec", "if", "then", "!", "do", "$"];
    let is_before = |word: &&String| {
        BEFORE.contains(&word.as_str())
            || word.split_once('=').is_some_and(|(name, _)| {
                name.chars().all(|char| char.is_ascii_uppercase() || char == '_')
            })
    };
    let command = &command[command.iter().take_while(is_before).count()..];
    let (program, arguments) = command.split_first()?;
    (program == "howdah" || program.ends_with("/howdah")).then_some(arguments)
}

/// The parser accepts all arguments: its only complaint is about one that the test adds.
#[test]
fn commands_of_the_pages_are_accepted() {
    const UNKNOWN: &str = "--no-command-has-this-option";
    let folder = tempfile::tempdir().unwrap();
    let mut tested = BTreeSet::new();
    let mut wrong = Vec::new();
    for (page, text_of_page) in pages().into_iter().filter(is_for_users) {
        let blocks = shell_blocks(&text_of_page);
        for line in blocks.iter().flat_map(|block| block.lines()) {
            for command in commands(line) {
                let Some(arguments) = arguments(&command) else { continue };
                // Arguments after `--` belong to another program.
                let own: Vec<&String> =
                    arguments.iter().take_while(|argument| *argument != "--").collect();
                if !tested.insert(own.iter().map(ToString::to_string).collect::<Vec<_>>()) {
                    continue;
                }
                // A configuration file must exist.
                let is_file = |at: usize| at > 0 && own[at - 1] == "--config";
                let given = own
                    .iter()
                    .enumerate()
                    .map(|(at, word)| if is_file(at) { "/dev/null" } else { word.as_str() });
                let output = howdah(folder.path()).args(given).arg(UNKNOWN).output().unwrap();
                let message = text(&output.stderr);
                if output.status.code() != Some(2) || !message.contains(UNKNOWN) {
                    wrong.push(format!("{}: {}\n{message}", page.display(), line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tested.len() > 100, "only {} commands were found", tested.len());
}

#[test]
fn shell_lines_are_split_into_commands() {
    let split = |line: &str| -> Vec<String> {
        commands(line).into_iter().map(|command| command.join("·")).collect()
    };
    assert_eq!(
        split("PGUSER=a howdah top 'a b' --x=\"c d\" 2> log | sort && howdah man > page # what"),
        ["PGUSER=a·howdah·top·a b·--x=c d", "sort", "howdah·man"]
    );
    assert_eq!(split("# only a comment"), [""; 0]);
}

/// The book is complete static files: every page, and an index for its search.
#[test]
fn book_can_be_searched() {
    let built = tempfile::tempdir().unwrap();
    let mut mdbook = Command::new("mdbook");
    mdbook.arg("build").arg(root().join("docs")).arg("--dest-dir").arg(built.path());
    let output = mdbook.output().expect("cannot run mdbook, which scripts/setup installs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let names = fs::read_dir(built.path()).unwrap().map(|entry| entry.unwrap().path());
    let index = names.filter_map(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name.starts_with("searchindex") && name.ends_with(".js")).then_some(path)
    });
    let index: Vec<_> = index.collect();
    assert_eq!(index.len(), 1, "mdbook was built without its feature `search`: install it again");
    let index = fs::read_to_string(&index[0]).unwrap();
    for (page, _) in pages().into_iter().filter(is_for_users) {
        let Ok(page) = page.strip_prefix("docs/src") else { continue };
        if page != Path::new("SUMMARY.md") {
            let html = page.with_extension("html");
            assert!(built.path().join(&html).is_file(), "no {}", html.display());
            assert!(index.contains(html.to_str().unwrap()), "{} cannot be found", html.display());
        }
    }
}

/// The anchor that the book gives a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter_map(|char| match char {
        ' ' => Some('-'),
        char if char.is_alphanumeric() || matches!(char, '-' | '_') => Some(char),
        _ => None,
    });
    kept.collect()
}

/// The targets of a page's links, without those in code.
fn links(page: &str) -> Vec<String> {
    let mut is_code = false;
    let mut text = String::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            // Parts between backticks are code.
            let parts = line.split('`').step_by(2);
            text.extend(parts.flat_map(|part| [part, " "]));
            text.push('\n');
        }
    }
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn links_of_the_pages_lead_somewhere() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (page, text) in pages() {
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (file, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => root().join(&page),
                file => root().join(page.parent().unwrap()).join(file),
            };
            if !target.exists() {
                wrong.push(format!("{}: {link}", page.display()));
                continue;
            }
            if fragment.is_empty() {
                continue;
            }
            let target = fs::read_to_string(target).unwrap();
            let headings = target.lines().filter(|line| line.starts_with('#'));
            if !headings.map(anchor).any(|anchor| anchor == fragment) {
                wrong.push(format!("{}: {link}: no such heading", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "only {count} links were found");
}
