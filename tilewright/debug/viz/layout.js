// A layered layout. In: nodes with sources and sizes. Out: a position for each. Sources stand above their users. A layer is
// ordered by the mean position of its neighbours, which keeps most edges from crossing; the time is linear in the edges.

const LAYER_GAP = 38;
const NODE_GAP = 14;
const SWEEPS = 6;

function layoutGraph(numbers, nodes, sizeOf) {
  const index = new Map(numbers.map((number, at) => [number, at]));
  const sources = numbers.map((number) => nodes[number].src.map((source) => index.get(source)));
  const users = numbers.map(() => []);
  sources.forEach((found, at) => found.forEach((source) => users[source].push(at)));

  const layerOf = new Int32Array(numbers.length);
  numbers.forEach((_, at) => {
    for (const source of sources[at]) layerOf[at] = Math.max(layerOf[at], layerOf[source] + 1);
  });
  // A node stands right above its first user: a constant with what it is added to, and not at the top with all others.
  for (let at = numbers.length - 1; at >= 0; at--) {
    let lowest = Infinity;
    for (const user of users[at]) lowest = Math.min(lowest, layerOf[user]);
    if (lowest !== Infinity) layerOf[at] = lowest - 1;
  }
  const layers = [];
  numbers.forEach((_, at) => {
    (layers[layerOf[at]] ??= []).push(at);
  });
  for (let layer = 0; layer < layers.length; layer++) layers[layer] ??= [];

  const sizes = numbers.map((number) => sizeOf(nodes[number]));
  const x = new Float64Array(numbers.length);
  const y = new Float64Array(numbers.length);
  let top = 0;
  for (const layer of layers) {
    let height = 0;
    for (const at of layer) {
      y[at] = top;
      height = Math.max(height, sizes[at].height);
    }
    top += height + LAYER_GAP;
    placeInOrder(layer, x, sizes);
  }
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const isDown = sweep % 2 === 0;
    const neighbours = isDown ? sources : users;
    for (let step = 0; step < layers.length; step++) {
      const layer = layers[isDown ? step : layers.length - 1 - step];
      placeByNeighbours(layer, neighbours, x, sizes);
    }
  }
  return { x, y, sizes, index, sources, users };
}

function placeInOrder(layer, x, sizes) {
  let left = 0;
  for (const at of layer) {
    x[at] = left + sizes[at].width / 2;
    left += sizes[at].width + NODE_GAP;
  }
  for (const at of layer) x[at] -= left / 2;
}

// Each node wants the mean of its neighbours; those that want the same place are moved apart around their common mean.
function placeByNeighbours(layer, neighbours, x, sizes) {
  const wanted = new Map();
  for (const at of layer) {
    const near = neighbours[at];
    let sum = 0;
    for (const other of near) sum += x[other];
    wanted.set(at, near.length ? sum / near.length : x[at]);
  }
  layer.sort((one, other) => wanted.get(one) - wanted.get(other));
  const blocks = [];
  for (const at of layer) {
    const width = sizes[at].width + NODE_GAP;
    blocks.push({ members: [at], width, centre: wanted.get(at), weight: 1 });
    while (blocks.length > 1) {
      const [one, other] = blocks.slice(-2);
      if (one.centre + one.width / 2 <= other.centre - other.width / 2) break;
      const weight = one.weight + other.weight;
      // Where the middle of the joined block has to be for its members to be nearest to what they want.
      const shifted = one.weight * (one.centre + other.width / 2) + other.weight * (other.centre - one.width / 2);
      blocks.splice(-2, 2, {
        members: one.members.concat(other.members), width: one.width + other.width, centre: shifted / weight, weight,
      });
    }
  }
  for (const block of blocks) {
    let left = block.centre - block.width / 2;
    for (const at of block.members) {
      const width = sizes[at].width + NODE_GAP;
      x[at] = left + width / 2;
      left += width;
    }
  }
}
