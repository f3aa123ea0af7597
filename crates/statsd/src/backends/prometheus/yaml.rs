//! YAML as a tree with line numbers, for files of people who have them. Aliases are refused: a few of
//! them can stand for more than any memory holds.

use yaml_rust2::{
    parser::{Event, MarkedEventReceiver, Parser},
    scanner::Marker,
};

use super::mapping::MappingProblem;

/// Levels of lists in lists.
const DEPTH_MAX: usize = 32;

/// A value and the line it begins in, from 1.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

/// What stands there.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// Parses the first document; `None` if there is nothing in it.
pub(super) fn parse(text: &str) -> Result<Option<Node>, (usize, MappingProblem)> {
    let mut tree = Tree::default();
    Parser::new_from_str(text).load(&mut tree, false).map_err(|error| {
        (error.marker().line(), MappingProblem::Syntax { reason: error.info().to_owned() })
    })?;
    match tree.problem {
        Some(problem) => Err(problem),
        None => Ok(tree.root),
    }
}

#[derive(Default)]
struct Tree {
    root: Option<Node>,
    /// Lists and maps that have begun and not ended; a map's key that waits for its value.
    open: Vec<(Node, Option<String>)>,
    problem: Option<(usize, MappingProblem)>,
}

impl Tree {
    fn begin(&mut self, line: usize, value: Value) {
        if self.open.len() >= DEPTH_MAX {
            self.problem.get_or_insert((line, MappingProblem::TooDeep));
        }
        self.open.push((Node { line, value }, None));
    }

    fn add(&mut self, node: Node) {
        let Some((parent, key)) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        match (&mut parent.value, key.take(), node.value) {
            (Value::List(list), _, value) => list.push(Node { line: node.line, value }),
            (Value::Map(_), None, Value::Scalar(text)) => *key = Some(text),
            (Value::Map(_), None, _) => {
                self.problem.get_or_insert((node.line, MappingProblem::KeyNotText));
                // Something has to stand for the key, or the values would become keys.
                *key = Some(String::new());
            }
            (Value::Map(map), Some(name), value) => {
                map.push((name, Node { line: node.line, value }));
            }
            (Value::Scalar(_), ..) => {}
        }
    }
}

impl MarkedEventReceiver for Tree {
    fn on_event(&mut self, event: Event, marker: Marker) {
        // After a problem the rest is only read to its end.
        if self.problem.is_some() {
            return;
        }
        let line = marker.line();
        match event {
            Event::Scalar(text, ..) => self.add(Node { line, value: Value::Scalar(text) }),
            Event::SequenceStart(..) => self.begin(line, Value::List(Vec::new())),
            Event::MappingStart(..) => self.begin(line, Value::Map(Vec::new())),
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some((node, _)) = self.open.pop() {
                    self.add(node);
                }
            }
            Event::Alias(_) => self.problem = Some((line, MappingProblem::Alias)),
            _ => {}
        }
    }
}

#[test]
fn a_tree_knows_its_lines() {
    let tree = parse("a:\n- x: 1\n  y: [2, 3]\n").expect("fine").expect("something");
    let Value::Map(top) = &tree.value else { panic!("{tree:?}") };
    let Value::List(list) = &top[0].1.value else { panic!("{tree:?}") };
    let Value::Map(entry) = &list[0].value else { panic!("{tree:?}") };
    assert_eq!((entry[1].0.as_str(), entry[1].1.line), ("y", 3));
    assert!(matches!(parse(""), Ok(None)));
    assert!(matches!(parse("a: &x [1]\nb: *x"), Err((2, MappingProblem::Alias))));
    assert!(matches!(parse("a: [1"), Err((_, MappingProblem::Syntax { .. }))));
    let deep = "[".repeat(40) + &"]".repeat(40);
    assert!(matches!(parse(&deep), Err((1, MappingProblem::TooDeep))));
}
