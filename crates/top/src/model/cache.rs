//! The table that was made last. A held key and a wheel ask for it many times between two readings, and of ten
//! thousand sessions it is not made in no time.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use crate::{
    Snapshot, Table,
    table::{Choice, Screen},
};

/// A table, and what it was made of.
#[derive(Debug, Default)]
pub(super) struct TableCache(RefCell<Option<Made>>);

#[derive(Debug)]
struct Made {
    screen: Screen,
    /// Held, so that no other snapshot can have its place in memory.
    snapshot: Arc<Snapshot>,
    choice: Choice,
    table: Option<Rc<Table>>,
}

impl TableCache {
    /// The table of a snapshot, as [`Table::of`] makes it.
    pub(super) fn table(
        &self,
        screen: Screen,
        snapshot: &Arc<Snapshot>,
        choice: Choice,
    ) -> Option<Rc<Table>> {
        let mut cached = self.0.borrow_mut();
        let is_of_this = |made: &Made| {
            made.screen == screen
                && Arc::ptr_eq(&made.snapshot, snapshot)
                && Choice {
                    order: choice.order,
                    is_ascending: choice.is_ascending,
                    ..made.choice.clone()
                } == choice
        };
        let table = match cached.take().filter(is_of_this) {
            Some(made) if made.choice == choice => made.table,
            made => {
                let order = choice.order.or(screen.order());
                match made.and_then(|made| made.table).zip(order) {
                    // The same rows in another order.
                    Some((mut table, order)) => {
                        Rc::make_mut(&mut table).sort(order, choice.is_ascending);
                        Some(table)
                    }
                    None => Table::of(screen, snapshot, &choice).map(Rc::new),
                }
            }
        };
        let snapshot = Arc::clone(snapshot);
        *cached = Some(Made { screen, snapshot, choice, table: table.clone() });
        table
    }
}
