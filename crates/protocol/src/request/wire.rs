//! Reading a [`Request`]: which subject a call's name belongs to.
//!
//! Serde's derived readers of the subjects know the names of their calls and nothing of each other.
//! The reader here takes the name off the message, asks each subject in turn whether the name is
//! one of its own ([`names`]), and has that subject read the rest with the name put back in front
//! ([`Named`]). Nothing is copied or read twice, so errors keep their wording and their place.

use std::fmt;

use serde::de::value::{EnumAccessDeserializer, StrDeserializer};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, Visitor,
};
use serde::forward_to_deserialize_any;

use super::{
    ChainRequest, FdbRequest, FunctionRequest, GroupRequest, InterfaceRequest, MdbRequest,
    PortRequest, ProgramRequest, Request, RuleRequest, SessionRequest, SwitchRequest, UsageRequest,
    WorkerRequest,
};

type Names = &'static [&'static str];

#[derive(Clone, Copy)]
enum Subject {
    Session,
    Switch,
    Port,
    Fdb,
    Mdb,
    Interface,
    Chain,
    Rule,
    Function,
    Program,
    Group,
    Worker,
    Usage,
}

/// Each subject with the names of its calls.
fn subjects() -> [(Subject, Names); 13] {
    [
        (Subject::Session, names::<SessionRequest>()),
        (Subject::Switch, names::<SwitchRequest>()),
        (Subject::Port, names::<PortRequest>()),
        (Subject::Fdb, names::<FdbRequest>()),
        (Subject::Mdb, names::<MdbRequest>()),
        (Subject::Interface, names::<InterfaceRequest>()),
        (Subject::Chain, names::<ChainRequest>()),
        (Subject::Rule, names::<RuleRequest>()),
        (Subject::Function, names::<FunctionRequest>()),
        (Subject::Program, names::<ProgramRequest>()),
        (Subject::Group, names::<GroupRequest>()),
        (Subject::Worker, names::<WorkerRequest>()),
        (Subject::Usage, names::<UsageRequest>()),
    ]
}

impl<'de> Deserialize<'de> for Request {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_enum("Request", &[], Call)
    }
}

/// Reads a call.
struct Call;

impl<'de> Visitor<'de> for Call {
    type Value = Request;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("enum Request")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Request, A::Error> {
        let ((subject, name), fields) = access.variant_seed(CallName)?;
        let call = EnumAccessDeserializer::new(Named { name, fields });
        match subject {
            Subject::Session => Deserialize::deserialize(call).map(Request::Session),
            Subject::Switch => Deserialize::deserialize(call).map(Request::Switch),
            Subject::Port => Deserialize::deserialize(call).map(Request::Port),
            Subject::Fdb => Deserialize::deserialize(call).map(Request::Fdb),
            Subject::Mdb => Deserialize::deserialize(call).map(Request::Mdb),
            Subject::Interface => Deserialize::deserialize(call).map(Request::Interface),
            Subject::Chain => Deserialize::deserialize(call).map(Request::Chain),
            Subject::Rule => Deserialize::deserialize(call).map(Request::Rule),
            Subject::Function => Deserialize::deserialize(call).map(Request::Function),
            Subject::Program => Deserialize::deserialize(call).map(Request::Program),
            Subject::Group => Deserialize::deserialize(call).map(Request::Group),
            Subject::Worker => Deserialize::deserialize(call).map(Request::Worker),
            Subject::Usage => Deserialize::deserialize(call).map(Request::Usage),
        }
    }
}

/// Reads the name of a call.
struct CallName;

impl<'de> DeserializeSeed<'de> for CallName {
    type Value = (Subject, &'static str);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for CallName {
    type Value = (Subject, &'static str);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("variant identifier")
    }

    fn visit_str<E: Error>(self, given: &str) -> Result<Self::Value, E> {
        let subjects = subjects();
        let known = subjects.iter().find_map(|&(subject, names)| {
            names.iter().find(|&&name| name == given).map(|&name| (subject, name))
        });
        known.ok_or_else(|| {
            let names: Vec<&str> =
                subjects.iter().flat_map(|(_, names)| names.iter().copied()).collect();
            let names = names.join("`, `");
            E::custom(format!("unknown variant `{given}`, expected one of `{names}`"))
        })
    }
}

/// A call whose name has been read already.
struct Named<V> {
    name: &'static str,
    fields: V,
}

impl<'de, V: serde::de::VariantAccess<'de>> EnumAccess<'de> for Named<V> {
    type Error = V::Error;
    type Variant = V;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, V), V::Error> {
        let name: StrDeserializer<'_, V::Error> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self.fields))
    }
}

/// The names of the calls of a subject, as its derived reader announces them.
fn names<T: Deserialize<'static>>() -> Names {
    let Err(Announced(names)) = T::deserialize(Ask) else {
        unreachable!("there is nothing to read")
    };
    names
}

/// Takes down which names a reader of an enum expects, and has no value for it.
struct Ask;

#[derive(Debug)]
struct Announced(Names);

impl<'de> Deserializer<'de> for Ask {
    type Error = Announced;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Announced> {
        Err(Announced(&[]))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: Names,
        _: V,
    ) -> Result<V::Value, Announced> {
        Err(Announced(variants))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl Error for Announced {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }
}

impl fmt::Display for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is nothing to read")
    }
}

impl std::error::Error for Announced {}
