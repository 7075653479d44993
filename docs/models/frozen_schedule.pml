/* The protocol of decision 0008: two tensors, three ranks, one vertex that decides.
   Run by scripts/model.sh, which chooses:
     SET0, SET1   who takes part in tensor 0 and tensor 1: bit r = rank r
     AWAY         which ranks are on a second host: bit r = rank r
     STEPS        how often each tensor is submitted
     BREAKS       how many ranks vote BREAK for no reason the model knows (any deviation)
     WANTS        how many impatient ranks ask for a thaw after they have voted READY
     CRASHES      how many ranks die
     DEVIANT      who does one of these three; else anybody, or rank 2 if all have equal parts
     STUBBORN     1: rank 2 submits tensor 1 first and waits for it before it submits tensor 0
   MUTANT breaks the protocol on purpose; each mutant has to fail (see model.sh). */

#ifndef SET0
#define SET0 7
#endif
#ifndef SET1
#define SET1 7
#endif
#ifndef AWAY
#define AWAY 0
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef BREAKS
#define BREAKS 1
#endif
#ifndef WANTS
#define WANTS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef STUBBORN
#define STUBBORN 0
#endif
#ifndef FREEZES
#define FREEZES 2
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define N 3
#define IN(set, r) (((set) >> (r)) & 1)
#define MEMBER(r, t) ((t) == 0 -> IN(SET0, r) : IN(SET1, r))
#define SET_OF(t) ((t) == 0 -> SET0 : SET1)
#define AT(r, t) (2 * (r) + (t))

mtype = { ANNOUNCE, WANT, THAWED, READY, FREEZE, THAW };

/* To the root: kind, tensor, freezes the sender has applied. The stream: kind, and a tensor or, of
   FREEZE, how many tensors a step has: the first one, or both. */
chan up[N] = [8] of { mtype, byte, byte };
chan stream[N] = [10] of { mtype, byte };

/* The word of each rank: READY for all its buckets below `ready`, BREAK for the rest once broken.
   The lowest rank of a set on a host, its leader, says in the same way what it found of its host,
   and of all hosts. Messages between leaders are left out: words only grow, and a vote that is read
   late is as good as one that comes late. */
byte word_epoch[N];
byte word_ready[N];
bit word_broken[N];
byte host_ready[N];
byte outcome_ready[N];

byte submitted[6];
byte done[6];
bit in_flight[6];
bit is_dead[N];
byte breaks_left = BREAKS;
byte wants_left = WANTS;
byte crashes_left = CRASHES;

/* What the n-th reduction of a tensor was: 0 not yet, 1 negotiated, 1 + epoch frozen. All its
   members have to mean the same. Each counts as reduced when the first of them begins. */
byte how[8];
/* Ranks 1 and 2, if they share both tensors, reduce them in one order. */
byte order[8];
byte order_length;
byte own_length[N];

inline Reduce(r, t, what) {
  assert(in_flight[AT(r, t)]);
  assert(how[4 * t + done[AT(r, t)]] == 0 || how[4 * t + done[AT(r, t)]] == what);
  how[4 * t + done[AT(r, t)]] = what;
  if
  :: r > 0 && (SET0 & SET1 & 6) == 6 ->
    if
    :: own_length[r] == order_length -> order[order_length] = t; order_length++
    :: else -> assert(order[own_length[r]] == t)
    fi;
    own_length[r]++
  :: else
  fi;
  in_flight[AT(r, t)] = 0;
  done[AT(r, t)]++
}

inline Submit(r, t) {
  in_flight[AT(r, t)] = 1;
  submitted[AT(r, t)]++;
  if
  :: !is_frozen -> to_root!ANNOUNCE, t, epoch
  :: else
  fi
}

/* Only with no READY of this rank undecided. */
inline Thaw(r) {
  word_broken[r] = 1;
  is_frozen = 0;
  is_called = 0;
  to_root!THAWED, 0, epoch;
  if :: in_flight[AT(r, 0)] -> to_root!ANNOUNCE, 0, epoch :: else fi;
  if :: in_flight[AT(r, 1)] -> to_root!ANNOUNCE, 1, epoch :: else fi
}

#define NEXT (head % length)

/* Buckets without this rank are none of its business. */
inline SkipOthers(r) {
  do
  :: !MEMBER(r, NEXT) && head < 2 * STEPS -> head++
  :: else -> break
  od
}
#define HERE(r, q) (IN(AWAY, r) == IN(AWAY, q))
#define IS_SPREAD(t) ((SET_OF(t) & AWAY) && (SET_OF(t) & ~AWAY & 7))
/* No lower member on its host. */
#define LEADS(q, t) \
  (MEMBER(q, t) && !(SET_OF(t) & (IN(AWAY, q) -> AWAY : ~AWAY) & ((1 << (q)) - 1)))
/* Whether rank r, before it executes the bucket at head, looks for what q says, ... */
#define LOOKS_AT(r, q) \
  (!IS_SPREAD(NEXT) || MUTANT == 8 -> MEMBER(q, NEXT) && HERE(r, q) : \
   (!LEADS(r, NEXT) -> LEADS(q, NEXT) && HERE(r, q) : \
    (has_told -> LEADS(q, NEXT) && !HERE(r, q) : MEMBER(q, NEXT) && HERE(r, q))))
/* ... and of which buckets q says READY to r. */
#define READY_OF(r, q) \
  (!IS_SPREAD(NEXT) || MUTANT == 8 -> word_ready[q] : \
   (!LEADS(r, NEXT) -> outcome_ready[q] : (has_told -> host_ready[q] : word_ready[q])))
/* Its host is READY, which the other one does not know. */
#define HAS_TO_TELL(r) (IS_SPREAD(NEXT) && LEADS(r, NEXT) && !has_told && MUTANT != 7)
#define FREE(t) (MEMBER(r, t) && !in_flight[AT(r, t)] && submitted[AT(r, t)] < STEPS)
/* Ranks with equal parts are interchangeable. */
#ifdef DEVIANT
#define MAY_DEVIATE(r) ((r) == DEVIANT)
#else
#define MAY_DEVIATE(r) (SET0 != 7 || SET1 != 7 || r == 2)
#endif
#define WAITS_FIRST(t) \
  (STUBBORN && r == 2 && (t) == 0 && submitted[AT(r, 0)] == done[AT(r, 1)])
#define SOMEBODY_DIED (is_dead[0] || is_dead[1] || is_dead[2])
#define DECIDED(r, q) \
  (word_epoch[q] == epoch && (READY_OF(r, q) > head || word_broken[q]))

proctype Rank(byte r; chan to_root; chan from_root) {
  bit is_frozen = 0;
  bit has_voted = 0; /* READY for the bucket at head. */
  bit has_told = 0;  /* And its host is READY for it, as the other one may know. */
  bit is_called = 0; /* The stream said THAW before head was decided. */
  byte epoch = 0;    /* Freezes applied. */
  byte length = 2;   /* Tensors of a step. */
  byte head = 0;     /* Buckets behind us since the freeze. */
  byte q = 0;        /* The next vote to read. */
  byte t;
  xs to_root;
  xr from_root;
end_idle:
  do
  :: atomic { FREE(0) && !WAITS_FIRST(0) -> Submit(r, 0) }
  :: atomic { FREE(1) -> Submit(r, 1) }

  :: atomic {
      is_frozen && !has_voted && MEMBER(r, NEXT) && in_flight[AT(r, NEXT)] ->
      word_ready[r] = head + 1;
      has_voted = 1;
      has_told = 0;
      q = 0
    }
  /* Votes are read one by one, at any pace. */
  :: atomic { is_frozen && has_voted && q < N && !LOOKS_AT(r, q) -> q++ }
  :: atomic {
      is_frozen && has_voted && q < N && LOOKS_AT(r, q) && DECIDED(r, q) ->
      if
      :: READY_OF(r, q) > head -> q++
      :: else -> /* BREAK: by now nobody can say READY to everybody. */
        has_voted = 0;
        Thaw(r)
      fi
    }
  :: atomic {
      is_frozen && has_voted && HAS_TO_TELL(r) && (q == N || MUTANT == 9) ->
      host_ready[r] = head + 1;
      has_told = 1;
      q = 0
    }
  :: atomic {
      is_frozen && has_voted && !HAS_TO_TELL(r) && (q == N || (MUTANT == 1 && q > r)) ->
      t = NEXT;
      if
      :: IS_SPREAD(t) && LEADS(r, t) -> outcome_ready[r] = head + 1
      :: else
      fi;
      Reduce(r, t, 1 + epoch);
      has_voted = 0;
      head++;
      SkipOthers(r);
      if
      :: is_called -> Thaw(r)
      :: else
      fi
    }

  /* Any deviation. */
  :: atomic {
      breaks_left > 0 && MAY_DEVIATE(r) && is_frozen && (!has_voted || MUTANT == 2) ->
      breaks_left--;
      has_voted = 0;
      if :: MUTANT == 2 -> word_ready[r] = head :: else fi;
      Thaw(r)
    }
  /* A tensor that the schedule does not have. */
  :: atomic { is_frozen && !has_voted && length == 1 && in_flight[AT(r, 1)] -> Thaw(r) }
  /* A tensor of a later bucket waits for one that does not come: patience ends. */
  :: atomic {
      MUTANT != 3 && is_frozen && !has_voted && length == 2 && in_flight[AT(r, 1 - NEXT)] &&
      !in_flight[AT(r, NEXT)] && (submitted[AT(r, NEXT)] == STEPS || WAITS_FIRST(NEXT)) -> Thaw(r)
    }
  :: atomic { wants_left > 0 && MAY_DEVIATE(r) && has_voted -> wants_left--; to_root!WANT, 0, epoch }
  :: atomic { crashes_left > 0 && MAY_DEVIATE(r) -> crashes_left--; is_dead[r] = 1; break }
  :: SOMEBODY_DIED -> break /* kPeerLost */

  :: atomic {
      from_root?READY, t ->
      if
      :: MEMBER(r, t) -> assert(!is_frozen); Reduce(r, t, 1)
      :: else
      fi
    }
  :: atomic {
      from_root?FREEZE, length ->
      assert(!is_frozen);
      is_frozen = 1;
      epoch++;
      head = 0;
      SkipOthers(r);
      word_ready[r] = 0;
      host_ready[r] = 0;
      outcome_ready[r] = 0;
      word_broken[r] = 0;
      word_epoch[r] = epoch
    }
  :: atomic {
      from_root?THAW, _ ->
      if
      :: is_frozen && has_voted && MUTANT != 5 -> is_called = 1
      :: is_frozen && (!has_voted || MUTANT == 5) -> has_voted = 0; Thaw(r)
      :: else
      fi
    }
  od
}

inline Tell(kind, tensor) {
  stream[0]!kind, tensor;
  stream[1]!kind, tensor;
  stream[2]!kind, tensor
}

active proctype Root() {
  byte ready[2];   /* Who is ready, bit by bit. */
  byte decided[2];
  byte thawed = 7; /* Who has left the frozen schedule. */
  bit is_frozen = 0;
  byte freezes = 0;
  byte r;
  byte t;
  byte seen;
  atomic {
    run Rank(0, up[0], stream[0]);
    run Rank(1, up[1], stream[1]);
    run Rank(2, up[2], stream[2])
  }
end_idle:
  do
  :: atomic {
      nempty(up[0]) || nempty(up[1]) || nempty(up[2]) ->
      if
      :: nempty(up[0]) -> r = 0
      :: nempty(up[1]) -> r = 1
      :: nempty(up[2]) -> r = 2
      fi;
      if
      :: up[r]?ANNOUNCE, t, seen ->
        if
        :: seen == freezes || MUTANT == 4 ->
          assert(!((ready[t] >> r) & 1));
          ready[t] = ready[t] | (1 << r)
        :: else /* Said before the freeze: taken back. */
        fi
      :: up[r]?WANT, _, seen ->
        if
        :: is_frozen && seen == freezes -> is_frozen = 0; Tell(THAW, 0)
        :: else
        fi
      :: up[r]?THAWED, _, _ ->
        assert(!((thawed >> r) & 1));
        thawed = thawed | (1 << r);
        if
        :: is_frozen -> is_frozen = 0; Tell(THAW, 0)
        :: else
        fi
      fi;
      t = 0;
      do
      :: t < 2 && ready[t] == SET_OF(t) -> ready[t] = 0; decided[t]++; Tell(READY, t); t++
      :: t < 2 && ready[t] != SET_OF(t) -> t++
      :: t == 2 -> break
      od
    }
  /* A step is over. */
  :: atomic {
      !is_frozen && (thawed == 7 || MUTANT == 6) && freezes < FREEZES && decided[0] > 0 &&
      (decided[1] == 0 || decided[1] == decided[0]) ->
      t = (decided[1] == 0 -> 1 : 2);
      ready[0] = 0;
      ready[1] = 0;
      decided[0] = 0;
      decided[1] = 0;
      thawed = 0;
      is_frozen = 1;
      freezes++;
      Tell(FREEZE, t)
    }
  od
}

#define ENDED(r, t) (!MEMBER(r, t) || done[AT(r, t)] == STEPS)

active proctype Monitor() {
end_wait:
  timeout;
  assert(SOMEBODY_DIED || (ENDED(0, 0) && ENDED(0, 1) && ENDED(1, 0) && ENDED(1, 1) &&
                           ENDED(2, 0) && ENDED(2, 1)))
}
