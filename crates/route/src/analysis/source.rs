//! Recognizes constants and parameters that are key values.

use crate::shard::KeyType;
use pg_query::{
    NodeEnum,
    protobuf::{AConst, Node, TypeName, a_const::Val},
};

use super::Analysis;
use crate::keys::{ConstantPosition, KeyValueSource};

impl<'a> Analysis<'a> {
    /// Returns the source of the value of key column `column`; `None` if the expression is not
    /// supported.
    pub(super) fn source(
        &mut self,
        value: &Node,
        column: usize,
        is_inserted: bool,
    ) -> Option<KeyValueSource> {
        let of = *self.settings.map.as_ref()?.columns().get(column)?;
        let (value, is_cast) = match value.node.as_ref()? {
            NodeEnum::TypeCast(cast) => {
                let is_known = is_type(cast.type_name.as_ref()?, of);
                (cast.arg.as_deref().filter(|_| is_known)?.node.as_ref()?, true)
            }
            plain => (plain, false),
        };
        match value {
            NodeEnum::ParamRef(parameter) => {
                let index = u16::try_from(parameter.number - 1).ok()?;
                self.parameters.push((index, parameter.location));
                Some(KeyValueSource::Parameter { index, is_cast, is_key_only: false })
            }
            NodeEnum::AConst(constant) if constant.isnull => {
                is_inserted.then_some(KeyValueSource::Null)
            }
            NodeEnum::AConst(constant) => self.constant(constant),
            _ => None,
        }
    }

    /// Returns the source of a constant. For a negative number, the position in the tree is that of
    /// the minus sign.
    fn constant(&self, constant: &AConst) -> Option<KeyValueSource> {
        let at = usize::try_from(constant.location).ok()?;
        let found = self.constants.binary_search_by_key(&at, |place| place.start);
        let (index, is_negative) = match (found, constant.val.as_ref()?) {
            (Ok(index), Val::Ival(_) | Val::Fval(_) | Val::Sval(_)) => (index, false),
            (Err(next), Val::Ival(_) | Val::Fval(_)) => {
                let between = self.sql.get(at..self.constants.get(next)?.start)?;
                (next, between.trim_ascii_end() == b"-")
            }
            _ => return None,
        };
        if found.is_err() && !is_negative {
            return None;
        }
        let place = self.constants[index].clone();
        let at = if index < self.extracted {
            ConstantPosition::Extracted(index)
        } else {
            ConstantPosition::Inline(self.sql[place].into())
        };
        Some(KeyValueSource::Constant { at, is_negative })
    }
}

/// Whether a cast to this type preserves a key value of type `of`.
fn is_type(name: &TypeName, of: KeyType) -> bool {
    if !name.typmods.is_empty() || !name.array_bounds.is_empty() || name.setof || name.pct_type {
        return false;
    }
    let part = |node: &'_ Node| match &node.node {
        Some(NodeEnum::String(part)) => part.sval.clone(),
        _ => String::new(),
    };
    let parts: Vec<_> = name.names.iter().map(part).collect();
    let parts: Vec<_> = parts.iter().map(String::as_str).collect();
    let ([name] | ["pg_catalog", name]) = parts[..] else { return false };
    match of {
        KeyType::Int => matches!(name, "int2" | "int4" | "int8"),
        KeyType::Text => matches!(name, "text" | "varchar"),
        KeyType::Uuid => name == "uuid",
        KeyType::Bytea => name == "bytea",
    }
}
