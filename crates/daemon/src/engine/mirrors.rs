//! Mirror ports, as control tells the workers of their switch.

use switch::{CopyRate, MirrorPoint};

use super::Workers;
use super::worker::Worker;
use crate::control::datapath::mirrors::Mirrors;
use crate::model::keys::PortKey;

impl Mirrors for Workers {
    fn set_mirror(&mut self, port: PortKey, rate: u32, from: &[(PortKey, MirrorPoint)]) {
        let Some((switch, id)) = self.switch_of(port) else { return };
        let id_of = |&(port, point)| Some((self.switch_of(port)?.1, point));
        let from: Vec<_> = from.iter().filter_map(id_of).collect();
        let rate = CopyRate::new(rate);
        let of_home = from.clone();
        let rate = self.on_switch(switch, move |worker, at| {
            worker.switch(at).set_mirror_port(id, rate, &of_home)
        });
        self.on_others(switch, || {
            let (rate, from) = (rate.handle(), from.clone());
            move |worker: &mut Worker, at| {
                worker.switch(at).set_mirror_port(id, rate, &from);
            }
        });
    }
}
