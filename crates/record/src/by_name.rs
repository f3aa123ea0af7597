//! [`ByName`]: what a session has by name, statements or portals.

use std::mem;

use hashbrown::HashMap;
use howdah_traffic::Text;

/// Things by name. Most clients have but the one without a name, which is found without a hash.
#[derive(Debug)]
pub(crate) struct ByName<T> {
    unnamed: Option<T>,
    /// With a hash that a client cannot foresee.
    named: HashMap<Text, T>,
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self { unnamed: None, named: HashMap::new() }
    }
}

impl<T> ByName<T> {
    pub(crate) fn get(&self, name: &Text) -> Option<&T> {
        match name.is_empty() {
            true => self.unnamed.as_ref(),
            false => self.named.get(name),
        }
    }

    pub(crate) fn get_mut(&mut self, name: &Text) -> Option<&mut T> {
        match name.is_empty() {
            true => self.unnamed.as_mut(),
            false => self.named.get_mut(name),
        }
    }

    /// Puts something under a name, and gives what it stood for before; `None` leaves nothing there.
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
fn with_a_name_and_without() {
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
