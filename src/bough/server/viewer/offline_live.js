// A copy has no events: what it holds is all there will be. Stands in for live.js.

export class Live {
  close() {}
}
