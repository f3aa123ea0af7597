//! [`ByName`]: a session's statements or portals by name.

use std::mem;

use hashbrown::HashMap;
use howdah_traffic::Text;

/// A map from names to values. Most clients use only the empty name, whose value is found without
/// hashing.
#[derive(Debug)]
pub(crate) struct ByName<T> {
    unnamed: Option<T>,
    /// Values of names that are not empty, hashed with a seed that clients cannot predict.
    named: HashMap<Text, T>,
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self { unnamed: None, named: HashMap::new() }
    }
}

impl<T> ByName<T> {
    pub(crate) fn get(&self, name: &Text) -> Option<&T> {
        if name.is_empty() { self.unnamed.as_ref() } else { self.named.get(name) }
    }

    pub(crate) fn get_mut(&mut self, name: &Text) -> Option<&mut T> {
        if name.is_empty() { self.unnamed.as_mut() } else { self.named.get_mut(name) }
    }

    /// Sets or, with `None`, removes the value of a name, and returns the previous value.
    pub(crate) fn set(&mut self, name: Text, it: Option<T>) -> Option<T> {
        match (name.is_empty(), it) {
            (true, it) => mem::replace(&mut self.unnamed, it),
            (false, Some(it)) => self.named.insert(name, it),
            (false, None) => self.named.remove(&name),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.unnamed = None;
        self.named.clear();
    }
}

#[test]
fn named_and_unnamed_values_are_stored() {
    let mut all = ByName::default();
    assert_eq!(all.set("".into(), Some(1)), None);
    assert_eq!(all.set("a".into(), Some(2)), None);
    assert_eq!(all.get(&"".into()), Some(&1));
    assert_eq!(all.get_mut(&"a".into()), Some(&mut 2));
    assert_eq!((all.set("".into(), None), all.set("a".into(), Some(3))), (Some(1), Some(2)));
    assert_eq!((all.get(&"".into()), all.get(&"a".into())), (None, Some(&3)));
    all.clear();
    assert_eq!(all.get(&"a".into()), None);
}
