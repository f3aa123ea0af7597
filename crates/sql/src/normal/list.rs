//! Tracks the contents of a pair of brackets, and folds runs of equal constants.

use std::ops::Range;

use crate::keywords::Expectation;

/// The form of the element that is being written, judging by its tokens so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    /// No token yet.
    Empty,
    /// Only names: possibly a type in front of a literal, as in `date '2026-01-01'`.
    Named,
    /// The keyword `array`, whose brackets follow.
    Array,
    /// A constant, with or without a type name in front.
    Constant,
    /// A constant and a cast; the type name is being written.
    Cast,
    /// `...`, which stands for more of the preceding element.
    Ellipsis,
    /// Anything else.
    Mixed,
}

/// The state of an open pair of brackets, or of the statement itself.
///
/// Positions are byte offsets in the output. Those of an outer list are never greater than those of
/// an inner one, so folding in the innermost list leaves all others valid.
#[derive(Debug)]
pub(super) struct ListState {
    bracket: u8,
    /// Position of the opening bracket.
    pub(super) start: usize,
    /// Whether the brackets enclose a row of VALUES.
    pub(super) row: bool,
    /// Whether runs of constants within the brackets are folded.
    pub(super) folds: bool,
    /// The element being written.
    pub(super) element: Element,
    element_start: usize,
    /// The last row of a VALUES that is directly in this list.
    pub(super) row_before: Option<Range<usize>>,
    /// The constant before the current element, without the comma between them.
    run: Option<Range<usize>>,
    /// Whether the constant in `run` represents several equal ones.
    run_folded: bool,
    /// Number of elements in the output so far; a folded run counts once.
    elements: usize,
    /// Whether all elements so far were constants.
    all_constant: bool,
}

impl ListState {
    /// Creates the state for the statement itself, which is never closed.
    pub(super) fn statement() -> Self {
        Self::open(0, 0, false, false)
    }

    pub(super) fn open(bracket: u8, start: usize, row: bool, folds: bool) -> Self {
        Self {
            bracket,
            start,
            row,
            folds,
            element: Element::Empty,
            element_start: start + 1,
            row_before: None,
            run: None,
            run_folded: false,
            elements: 0,
            all_constant: true,
        }
    }

    pub(super) fn closes_with(&self, bracket: u8) -> bool {
        matches!((self.bracket, bracket), (b'(', b')') | (b'[', b']'))
    }

    pub(super) fn set(&mut self, element: Element) {
        self.element = element;
    }

    pub(super) fn literal(&mut self) {
        self.element = match self.element {
            Element::Empty | Element::Named => Element::Constant,
            _ => Element::Mixed,
        };
    }

    pub(super) fn name(&mut self) {
        self.element = match self.element {
            Element::Empty | Element::Named => Element::Named,
            Element::Cast => Element::Cast,
            _ => Element::Mixed,
        };
    }

    pub(super) fn keyword(&mut self, due: Expectation) {
        self.element = match (self.element, due) {
            (Element::Empty, Expectation::Array) => Element::Array,
            _ => Element::Mixed,
        };
    }

    pub(super) fn cast(&mut self) {
        self.element = match self.element {
            Element::Constant | Element::Cast => Element::Cast,
            _ => Element::Mixed,
        };
    }

    pub(super) fn dot(&mut self) {
        if !matches!(self.element, Element::Named | Element::Cast) {
            self.element = Element::Mixed;
        }
    }

    pub(super) fn ellipsis(&mut self) {
        self.element = match self.element {
            Element::Empty => Element::Ellipsis,
            _ => Element::Mixed,
        };
    }

    /// Updates the element's form after a bracketed group inside it has ended.
    pub(super) fn group(&mut self, group: &Self) {
        let constant = group.folds && group.all_constant && group.elements > 0;
        self.element = match (self.element, group.bracket) {
            // Type modifiers and array bounds: `::numeric(10, 2)[]`.
            (Element::Cast, _) => Element::Cast,
            (Element::Empty, _) | (Element::Array, b'[') if constant => Element::Constant,
            _ => Element::Mixed,
        };
    }

    pub(super) fn start_element(&mut self, start: usize) {
        self.element = Element::Empty;
        self.element_start = start;
    }

    /// Finishes the element that ends at the end of `out`, and folds it into the preceding run if
    /// it is equal.
    pub(super) fn finish_element(&mut self, out: &mut String) {
        if !self.folds || (self.element == Element::Empty && self.elements == 0) {
            return;
        }
        let constant = matches!(self.element, Element::Constant | Element::Cast);
        let text = self.element_start..out.len();
        let repeats = self.run.clone().filter(|run| {
            self.element == Element::Ellipsis
                || constant && out[run.clone()].trim_start() == out[text.clone()].trim_start()
        });
        match repeats {
            Some(run) => {
                out.truncate(run.end);
                self.run_folded = true;
            }
            None => {
                let start = self.element_start + self.finish_run(out);
                self.run = constant.then_some(start..out.len());
                self.all_constant &= constant;
                self.elements += 1;
            }
        }
    }

    /// Ends the current run. If it was folded, inserts `, ...` after it. Returns the number of
    /// bytes inserted.
    fn finish_run(&mut self, out: &mut String) -> usize {
        const MARK: &str = ", ...";
        match self.run.take() {
            Some(run) if std::mem::take(&mut self.run_folded) => {
                out.insert_str(run.end, MARK);
                MARK.len()
            }
            _ => 0,
        }
    }

    /// Whether the list, whose last element is finished, must end in `, ...`.
    pub(super) fn needs_ellipsis(&self) -> bool {
        self.folds && (self.run_folded || self.all_constant && self.elements == 1)
    }
}
