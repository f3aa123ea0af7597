//! Labels of sessions: the user, database, application and client that samples are counted under.

use std::{collections::HashMap, sync::Arc};

use howdah_collect::BackendActivity;

/// A property of sessions by which samples can be separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SessionDimension {
    /// Role that the session logged in as.
    User,
    /// Database that the session is connected to.
    Database,
    /// `application_name`.
    Application,
    /// Client address; `[local]` for a Unix socket.
    Client,
}

impl SessionDimension {
    /// All dimensions, in the order of their columns.
    pub const ALL: [Self; 4] = [Self::User, Self::Database, Self::Application, Self::Client];

    /// Returns the name of the dimension and of its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Database => "database",
            Self::Application => "application",
            Self::Client => "client",
        }
    }
}

/// The values of a session's dimensions, in the order of [`SessionDimension::ALL`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionLabel {
    values: [Option<Arc<str>>; 4],
}

impl SessionLabel {
    /// Returns the label of a session in `pg_stat_activity`.
    pub fn of_backend(backend: &BackendActivity) -> Self {
        let client = backend.client_name().map(Arc::from);
        let BackendActivity { user, database, application, .. } = backend;
        Self { values: [user.clone(), database.clone(), application.clone(), client] }
    }

    /// Returns the label of a session of which only the user and the database are known.
    pub fn of_title(user: Option<&str>, database: Option<&str>) -> Self {
        Self { values: [user.map(Arc::from), database.map(Arc::from), None, None] }
    }

    /// Returns the value of a dimension; `None` if the session has none, it is not visible to the
    /// role, or samples are not separated by it.
    pub fn value(&self, dimension: SessionDimension) -> Option<&str> {
        self.values[dimension as usize].as_deref()
    }
}

/// Id of a label, valid for the [`SessionLabels`] that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(u32);

/// Labels with the requested dimensions only, each stored once.
#[derive(Debug)]
pub struct SessionLabels {
    dimensions: Vec<SessionDimension>,
    labels: Vec<SessionLabel>,
    ids: HashMap<SessionLabel, LabelId>,
    /// Preliminary labels that are not in use.
    free: Vec<LabelId>,
}

/// Maximum number of different labels: clients choose application names. Later ones count as
/// [`LabelId::OTHER`].
const LABELS_MAX: usize = 10_000;

impl LabelId {
    /// Stands for every label after the first 10,000.
    pub const OTHER: Self = Self(u32::MAX);
}

impl SessionLabels {
    /// Creates an empty table of labels with these dimensions.
    pub fn new(dimensions: Vec<SessionDimension>) -> Self {
        Self { dimensions, labels: Vec::new(), ids: HashMap::new(), free: Vec::new() }
    }

    /// Returns the label of an id; `None` for [`LabelId::OTHER`].
    pub fn label(&self, id: LabelId) -> Option<&SessionLabel> {
        self.labels.get(id.0 as usize)
    }

    /// Returns the id of a label, of which only the requested dimensions count.
    pub fn intern(&mut self, mut label: SessionLabel) -> LabelId {
        for dimension in SessionDimension::ALL {
            if !self.dimensions.contains(&dimension) {
                label.values[dimension as usize] = None;
            }
        }
        if let Some(&id) = self.ids.get(&label) {
            return id;
        }
        if self.labels.len() >= LABELS_MAX {
            return LabelId::OTHER;
        }
        let id = LabelId(u32::try_from(self.labels.len()).unwrap_or(u32::MAX));
        self.labels.push(label.clone());
        self.ids.insert(label, id);
        id
    }

    /// Adds a label that is equal to no other, for a session whose identity is read later.
    pub(crate) fn add_preliminary(&mut self, label: SessionLabel) -> LabelId {
        if let Some(id) = self.free.pop() {
            self.labels[id.0 as usize] = label;
            return id;
        }
        if self.labels.len() >= LABELS_MAX {
            return LabelId::OTHER;
        }
        let id = LabelId(u32::try_from(self.labels.len()).unwrap_or(u32::MAX));
        self.labels.push(label);
        id
    }

    /// Releases a preliminary label, to which no observation refers any more.
    pub(crate) fn release_preliminary(&mut self, id: LabelId) {
        if id != LabelId::OTHER {
            self.free.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_has_requested_dimensions_only() {
        let mut labels = SessionLabels::new(vec![SessionDimension::Database]);
        let [first, second, other] = [("ann", "shop"), ("bob", "shop"), ("ann", "bank")]
            .map(|(user, name)| labels.intern(SessionLabel::of_title(Some(user), Some(name))));
        assert_eq!(first, second);
        assert_ne!(first, other);
        let label = labels.label(first).expect("label exists");
        let values = SessionDimension::ALL.map(|dimension| label.value(dimension));
        assert_eq!(values, [None, Some("shop"), None, None]);
    }

    #[test]
    fn number_of_labels_is_bounded() {
        let mut labels = SessionLabels::new(vec![SessionDimension::User]);
        for number in 0..LABELS_MAX {
            labels.intern(SessionLabel::of_title(Some(&number.to_string()), None));
        }
        let id = labels.intern(SessionLabel::of_title(Some("new"), None));
        assert_eq!((id, labels.label(id)), (LabelId::OTHER, None));
        assert_eq!(labels.add_preliminary(SessionLabel::default()), LabelId::OTHER);
    }
}
