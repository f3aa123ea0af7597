//! Detects padded fields of a prefix, such as `%-12u` and `%8p`, by constant sums.
//!
//! If the length of a value plus the number of spaces after it is the same in every line, the field
//! is padded on the right; if the sum with the spaces before it is constant, on the left. A value
//! longer than the width is followed only by the literal spaces of the prefix.

use std::collections::HashSet;

use super::LineHead;

/// Largest width that is tried for a value between two others. Names have at most 63 bytes.
const WIDTH_MAX: usize = 64;

/// The padding of each token in heads with the same kinds of tokens.
pub(super) struct Padding {
    tokens: Vec<PaddingKind>,
}

/// The padding of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PaddingKind {
    /// Not padded. Literal text keeps its spaces.
    No,
    /// `%-12u`: padded on the right.
    Right(usize),
    /// `%12u`: padded on the left.
    Left(usize),
    /// Literal text between padded tokens: the number of its own spaces at the front and at the
    /// end, where its neighbours are padded.
    Between { front: Option<usize>, end: Option<usize> },
}

/// The width of a padded column, and the number of literal spaces next to it.
struct PaddedColumn {
    width: usize,
    own: usize,
}

impl Padding {
    /// Returns a result in which no token is padded.
    pub(super) fn none(heads: &[&LineHead<'_>]) -> Self {
        Self { tokens: vec![PaddingKind::No; heads[0].tokens.len()] }
    }

    /// Detects the padded tokens by the spaces between tokens.
    pub(super) fn detect(heads: &[&LineHead<'_>]) -> Self {
        let mut padding = Self::none(heads);
        // Text before the first field is not padding.
        for at in 1..padding.tokens.len() {
            padding.detect_at(at, heads);
        }
        padding
    }

    fn detect_at(&mut self, at: usize, heads: &[&LineHead<'_>]) {
        let texts = || heads.iter().map(|head| head.tokens[at].1);
        let values = |at: usize| heads.iter().map(move |head| head.tokens[at].1.len());
        let leading: Vec<_> = texts().map(|it| it.len() - it.trim_ascii_start().len()).collect();
        let trailing: Vec<_> = texts().map(|it| it.len() - it.trim_ascii_end().len()).collect();
        let is_space = texts().all(|text| text.trim_ascii().is_empty());
        let has_next = at + 1 < self.tokens.len();
        let right = PaddedColumn::detect(values(at - 1), &leading, is_space);
        // Text of only spaces pads one neighbour, or both.
        let left = match &right {
            Some(_) if is_space => None,
            _ if has_next => PaddedColumn::detect(values(at + 1), &trailing, is_space),
            _ => None,
        };
        if right.is_none() && left.is_none() {
            if is_space && has_next {
                let rows = values(at - 1).zip(&leading).zip(values(at + 1));
                self.split_between(at, rows.map(|((one, more), other)| (one, *more, other)));
            }
            return;
        }
        if let Some(column) = &right {
            self.tokens[at - 1] = PaddingKind::Right(column.width);
        }
        if let Some(column) = &left {
            self.tokens[at + 1] = PaddingKind::Left(column.width);
        }
        let own = |column: Option<PaddedColumn>| column.map(|column| column.own);
        self.tokens[at] = PaddingKind::Between { front: own(right), end: own(left) };
    }

    /// Divides the spaces of each row between the values before and after them: with the first
    /// widths, and the first number of literal spaces, that explain every row. In `rows`, the
    /// number of spaces is between the lengths of the two values.
    fn split_between(&mut self, at: usize, rows: impl Iterator<Item = (usize, usize, usize)>) {
        let rows: HashSet<_> = rows.collect();
        let is_varied = rows.iter().any(|(_, spaces, _)| *spaces > 1);
        if !is_varied || matches!(self.tokens[at - 1], PaddingKind::Left(_)) {
            return;
        }
        let widths =
            || (1..=WIDTH_MAX).flat_map(|left| (1..=WIDTH_MAX).map(move |right| (left, right)));
        let found = [1, 0, 2].into_iter().find_map(|own| {
            let explains = |(left, right): &(usize, usize)| {
                rows.iter().all(|(one, spaces, other)| {
                    one.max(left) + own + other.max(right) == one + spaces + other
                })
            };
            widths().find(explains).map(|widths| (own, widths))
        });
        let Some((own, (left, right))) = found else { return };
        self.tokens[at - 1] = PaddingKind::Right(left);
        self.tokens[at] = PaddingKind::Between { front: Some(own), end: None };
        self.tokens[at + 1] = PaddingKind::Left(right);
    }

    /// Returns the escape of a token with its width, such as `%-12u`.
    pub(super) fn escape_with_width(&self, at: usize, escape: &str) -> String {
        match (self.tokens[at], escape.strip_prefix('%')) {
            (PaddingKind::Right(width), Some(letter)) => format!("%-{width}{letter}"),
            (PaddingKind::Left(width), Some(letter)) => format!("%{width}{letter}"),
            _ => escape.to_owned(),
        }
    }

    /// Returns literal text without the spaces that pad its neighbours.
    pub(super) fn strip_padding(&self, at: usize, text: &[u8]) -> Vec<u8> {
        let PaddingKind::Between { front, end } = self.tokens[at] else { return text.to_vec() };
        let mut text = text.to_vec();
        if let Some(own) = front {
            text = [&b" ".repeat(own), text.trim_ascii_start()].concat();
        }
        if let Some(own) = end {
            text = [text.trim_ascii_end(), &b" ".repeat(own)].concat();
        }
        text
    }
}

impl PaddedColumn {
    /// Detects the width to which values are padded, from the number of spaces next to each; `None`
    /// if the spaces are not padding.
    fn detect(
        values: impl Iterator<Item = usize>,
        spaces: &[usize],
        is_space: bool,
    ) -> Option<Self> {
        let least = *spaces.iter().min()?;
        let sums: Vec<_> = values.zip(spaces).map(|(value, more)| (value + more, *more)).collect();
        let column = sums.iter().map(|(sum, _)| *sum).min()?;
        let is_varied = spaces.iter().any(|more| *more != least);
        // Values longer than the width are next to the literal spaces of the prefix only.
        let fits = sums.iter().all(|(sum, more)| *sum == column || *more == least);
        let is_exceeded = sums.iter().any(|(sum, _)| *sum > column);
        let own = match is_exceeded {
            true => least,
            false if is_space => least.min(1),
            false => 0,
        };
        (is_varied && fits).then(|| Self { width: column - own, own })
    }
}

/// Returns a text with each run of spaces reduced to one space, so that texts compare equal
/// regardless of padding.
pub(super) fn with_single_spaces(text: &[u8]) -> Vec<u8> {
    let mut single = text.to_vec();
    single.dedup_by(|one, other| *one == b' ' && *other == b' ');
    single
}
