//! Patterns for names and tags.

use regex_lite::Regex;

/// A text with `*`, each of which matches any characters, also none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WildcardPattern {
    /// The texts before, between and after the wildcards.
    pieces: Box<[Box<str>]>,
}

impl WildcardPattern {
    pub(crate) fn new(pattern: &str) -> Self {
        Self { pieces: pattern.split('*').map(Into::into).collect() }
    }

    pub(crate) fn matches(&self, text: &str) -> bool {
        self.capture(text, &mut Vec::new())
    }

    /// Whether the pattern matches; if so, appends the text of each wildcard to `captures`.
    fn capture<'t>(&self, text: &'t str, captures: &mut Vec<&'t str>) -> bool {
        let [first, middle @ .., last] = &*self.pieces else {
            return self.pieces.first().is_some_and(|only| **only == *text);
        };
        let Some(mut rest) = text.strip_prefix(&**first) else { return false };
        let before = captures.len();
        for piece in middle {
            // The first occurrence leaves the most text for the remaining pieces.
            let Some((captured, after)) = rest.split_once(&**piece) else {
                captures.truncate(before);
                return false;
            };
            captures.push(captured);
            rest = after;
        }
        match rest.strip_suffix(&**last) {
            Some(captured) => captures.push(captured),
            None => captures.truncate(before),
        }
        captures.len() > before
    }

    fn wildcards(&self) -> usize {
        self.pieces.len() - 1
    }
}

/// A condition for a name without tags.
#[derive(Debug)]
pub(super) enum NameCondition {
    /// One pattern for each part of the name; with `open_end`, further parts follow.
    Glob {
        parts: Box<[WildcardPattern]>,
        open_end: bool,
    },
    Regex(Regex),
}

/// The texts that a name's pattern captured.
#[derive(Debug)]
pub(super) struct NameCaptures<'n> {
    whole: &'n str,
    groups: Vec<Option<&'n str>>,
}

impl NameCondition {
    /// Parses a glob.
    ///
    /// # Errors
    ///
    /// A description of the problem.
    pub(super) fn glob(pattern: &str) -> Result<Self, String> {
        if pattern.is_empty() {
            return Err("must not be empty; leave it out to match all names".to_owned());
        }
        if pattern.contains(';') {
            return Err("must not contain tags; the key tags has conditions for them".to_owned());
        }
        let (front, open_end) = match pattern.strip_suffix(".**") {
            _ if pattern == "**" => (None, true),
            Some(front) => (Some(front), true),
            None => (Some(pattern), false),
        };
        if front.is_some_and(|front| front.contains("**")) {
            return Err("** must be the whole last part, as in \"debug.**\"".to_owned());
        }
        let parts = front.map(|front| front.split('.').map(WildcardPattern::new).collect());
        Ok(Self::Glob { parts: parts.unwrap_or_default(), open_end })
    }

    /// Compiles a regular expression.
    ///
    /// # Errors
    ///
    /// A description of the problem.
    pub(super) fn regex(pattern: &str) -> Result<Self, String> {
        let compiled = Regex::new(pattern);
        compiled
            .map(Self::Regex)
            .map_err(|error| format!("{pattern:?} is not a valid regular expression: {error}"))
    }

    /// Returns the number of wildcards or groups.
    pub(super) fn captures(&self) -> usize {
        match self {
            Self::Glob { parts, open_end } => {
                parts.iter().map(WildcardPattern::wildcards).sum::<usize>() + usize::from(*open_end)
            }
            Self::Regex(regex) => regex.captures_len() - 1,
        }
    }

    /// Returns the captured texts if the name matches.
    pub(super) fn captures_of<'n>(&self, name: &'n str) -> Option<NameCaptures<'n>> {
        match self {
            Self::Glob { parts, open_end } => {
                let (mut captures, mut rest) = (Vec::new(), Some(name));
                for part in parts {
                    let (text, after) = match rest?.split_once('.') {
                        Some((text, after)) => (text, Some(after)),
                        None => (rest?, None),
                    };
                    if !part.capture(text, &mut captures) {
                        return None;
                    }
                    rest = after;
                }
                match rest {
                    Some(rest) if *open_end => captures.push(rest),
                    None if !open_end => {}
                    _ => return None,
                }
                let groups = captures.into_iter().map(Some).collect();
                Some(NameCaptures { whole: name, groups })
            }
            Self::Regex(regex) => {
                let captures = regex.captures(name)?;
                let groups = captures.iter().map(|group| group.map(|group| group.as_str()));
                let mut groups = groups.collect::<Vec<_>>().into_iter();
                let whole = groups.next().flatten().unwrap_or_default();
                Some(NameCaptures { whole, groups: groups.collect() })
            }
        }
    }
}

impl<'n> NameCaptures<'n> {
    /// Creates the captures of a rule without a condition for the name.
    pub(super) fn whole(name: &'n str) -> Self {
        Self { whole: name, groups: Vec::new() }
    }

    /// Returns the text of a wildcard or group, from 1, or the whole match.
    pub(super) fn get(&self, at: usize) -> Option<&'n str> {
        match at.checked_sub(1) {
            None => Some(self.whole),
            Some(group) => self.groups.get(group).copied().flatten(),
        }
    }
}
