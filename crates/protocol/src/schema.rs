//! Schemas for an OpenAPI document of the types that are text.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::name::{PortName, SwitchName};
use crate::{
    Address, Direction, ExternRemote, Filter, Forwarding, Mode, NewPorts, OnFull, PortWorker,
    QueueSet, RunBy, VlanVni, VxlanStation,
};

macro_rules! text {
    ($($name:ident = $about:literal, $example:literal;)*) => {$(
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let text = ObjectBuilder::new().schema_type(Type::String);
                text.description(Some($about)).examples([$example]).into()
            }
        }

        impl ToSchema for $name {}
    )*};
}

text! {
    SwitchName = "Name of a switch.", "vale0";
    PortName = "Name of a port: that of its switch, a colon, and its own.", "vale0:vm1";
    Mode = "Permission bits as of a file, in octal.", "660";
    NewPorts = "Which users may create a port by opening it: any or owner.", "any";
    Forwarding = "The forwarding function of a switch.", "learning";
    OnFull = "What happens to a frame that finds no room: drop or wait.", "drop";
    RunBy = "Which workers run a switch: one or all.", "one";
    PortWorker = "The worker of a port: auto, or the number of one.", "auto";
    Direction = "Frames that a port sends (in, into the switch), gets (out), or both.", "both";
    Address = "An IP address with the length of its prefix.", "10.0.0.1/24";
    Filter = "Frames that match one value of each kind.", "vlan=10,type=0x0806";
    QueueSet = "Numbers of queues.", "0-3";
    VlanVni = "A VLAN and the VNI of its virtual network.", "10:1010";
    ExternRemote = "A remote of a routing daemon, for a VLAN or for all.", "10=10.0.0.2";
    VxlanStation = "A station behind a remote.", "02:00:00:00:00:01=10.0.0.2";
}
