//! Hostile object files: refused, or programs that come to an end and do what any program may.

use program::limits::STEPS_MAX;
use program::{Frame, Image, PORTS_MAX, Program, object};

/// Reads an object file, runs what is in it on some frames, and uses its maps as control does.
pub fn program_object(data: &[u8]) {
    let Ok(image) = object::read(data) else { return };
    let text = image.to_string();
    assert_eq!(text.parse::<Image>().as_ref(), Ok(&image), "an image survives its text");
    let mut program = Program::new(&image, 7).expect("what was read is checked");
    assert!(image.memory() < 5 << 20, "{} bytes", image.memory());
    for (now_us, len) in [(0, 14), (1, 96), (u64::MAX, 60)] {
        let frame = Frame { now_us, port: 3, vlan: 1, bytes: &[2; 96][..len] };
        let faults = program.counts().faults;
        let decided = program.run(&frame);
        assert_eq!(program.counts().faults, faults + u64::from(decided.is_err()));
        assert!(program.ports().len() <= PORTS_MAX);
        assert!(program.counts().steps <= program.counts().runs * u64::from(STEPS_MAX));
    }
    for (map, def) in image.maps.iter().enumerate() {
        let (key, value) = (vec![0; def.key as usize], vec![9; def.value as usize]);
        if program.set(map, &key, &value).is_ok() {
            assert_eq!(program.get(map, &key), Ok(value));
        }
        let count = program.count(map) as usize;
        assert_eq!(program.entries(map, 0, usize::MAX).len(), count);
        let _ = program.delete(map, &key);
    }
}
