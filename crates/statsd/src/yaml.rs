//! Parses YAML into a tree with line numbers. Aliases are refused, because a few of them can expand
//! to more than fits into memory.

use yaml_rust2::{
    parser::{Event, Parser},
    scanner::Marker,
};

/// Maximum nesting of lists and maps.
const DEPTH_MAX: usize = 32;

/// The reason why a text cannot be read as YAML.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum YamlProblem {
    /// The text is not valid YAML.
    #[error("invalid YAML: {reason}")]
    Syntax {
        /// The parser's message.
        reason: String,
    },
    /// An alias, `*name`.
    #[error("aliases are not supported: write the value instead")]
    Alias,
    /// Lists and maps are nested too deeply.
    #[error("lists and maps are nested more than 32 levels deep")]
    TooDeep,
    /// A key is a list or a map.
    #[error("a key must be a string")]
    KeyNotText,
}

/// A value and its first line, from 1.
#[derive(Clone, Debug)]
pub(crate) struct YamlNode {
    pub(crate) line: usize,
    pub(crate) value: YamlValue,
}

/// The content of a node: text, list or map.
#[derive(Clone, Debug)]
pub(crate) enum YamlValue {
    Scalar(String),
    List(Vec<YamlNode>),
    Map(Vec<(String, YamlNode)>),
}

/// Parses the first document; `None` if it is empty.
pub(crate) fn parse(text: &str) -> Result<Option<YamlNode>, (usize, YamlProblem)> {
    let mut tree = YamlTree::default();
    let mut parser = Parser::new_from_str(text);
    // `Parser::load` would call itself for each level of nesting.
    while tree.problem.is_none() {
        let (event, marker) = parser.next_token().map_err(|error| {
            (error.marker().line(), YamlProblem::Syntax { reason: error.info().to_owned() })
        })?;
        let is_end = matches!(event, Event::DocumentEnd | Event::StreamEnd);
        tree.on_event(event, marker);
        if is_end {
            break;
        }
    }
    match tree.problem {
        Some(problem) => Err(problem),
        None => Ok(tree.root),
    }
}

#[derive(Default)]
struct YamlTree {
    root: Option<YamlNode>,
    /// Unfinished lists and maps, each with the map key whose value is still missing.
    open: Vec<(YamlNode, Option<String>)>,
    problem: Option<(usize, YamlProblem)>,
}

impl YamlTree {
    fn open_node(&mut self, line: usize, value: YamlValue) {
        if self.open.len() >= DEPTH_MAX {
            self.problem.get_or_insert((line, YamlProblem::TooDeep));
        }
        self.open.push((YamlNode { line, value }, None));
    }

    fn add(&mut self, node: YamlNode) {
        let Some((parent, key)) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        match (&mut parent.value, key.take(), node.value) {
            (YamlValue::List(list), _, value) => list.push(YamlNode { line: node.line, value }),
            (YamlValue::Map(_), None, YamlValue::Scalar(text)) => *key = Some(text),
            (YamlValue::Map(_), None, _) => {
                self.problem.get_or_insert((node.line, YamlProblem::KeyNotText));
                // A placeholder key, otherwise values would be read as keys.
                *key = Some(String::new());
            }
            (YamlValue::Map(map), Some(name), value) => {
                map.push((name, YamlNode { line: node.line, value }));
            }
            (YamlValue::Scalar(_), ..) => {}
        }
    }
}

impl YamlTree {
    fn on_event(&mut self, event: Event, marker: Marker) {
        let line = marker.line();
        match event {
            Event::Scalar(text, ..) => self.add(YamlNode { line, value: YamlValue::Scalar(text) }),
            Event::SequenceStart(..) => self.open_node(line, YamlValue::List(Vec::new())),
            Event::MappingStart(..) => self.open_node(line, YamlValue::Map(Vec::new())),
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some((node, _)) = self.open.pop() {
                    self.add(node);
                }
            }
            Event::Alias(_) => self.problem = Some((line, YamlProblem::Alias)),
            _ => {}
        }
    }
}

#[test]
fn nodes_record_their_lines() {
    let tree = parse("a:\n- x: 1\n  y: [2, 3]\n").expect("valid YAML").expect("a document");
    let YamlValue::Map(top) = &tree.value else { panic!("{tree:?}") };
    let YamlValue::List(list) = &top[0].1.value else { panic!("{tree:?}") };
    let YamlValue::Map(entry) = &list[0].value else { panic!("{tree:?}") };
    assert_eq!((entry[1].0.as_str(), entry[1].1.line), ("y", 3));
    assert!(matches!(parse(""), Ok(None)));
    assert!(matches!(parse("a: &x [1]\nb: *x"), Err((2, YamlProblem::Alias))));
    assert!(matches!(parse("a: [1"), Err((_, YamlProblem::Syntax { .. }))));
    let deep = "[".repeat(40) + &"]".repeat(40);
    assert!(matches!(parse(&deep), Err((1, YamlProblem::TooDeep))));
    let deep = "- ".repeat(1 << 20);
    assert!(matches!(parse(&deep), Err((1, YamlProblem::TooDeep))));
}
