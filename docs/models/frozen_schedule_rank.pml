/* What a rank does, of the model that frozen_schedule.pml begins: it submits, votes, reads votes,
   follows the stream, deviates, ends. A bucket is numbered `head`; NEXT is its tensor. */

#define HOW_NEXT(r, t) how[4 * (t) + done[AT(r, t)]]

inline Reduce(r, t, what) {
  PROMISE(NOTHING_TWICE, in_flight[AT(r, t)]);
  PROMISE(ONE_OUTCOME, HOW_NEXT(r, t) == 0 || HOW_NEXT(r, t) == what);
  HOW_NEXT(r, t) = what;
  if
  :: r > 0 && (SET0 & SET1 & 6) == 6 ->
    if
    :: own_length[r] == order_length -> order[order_length] = t; order_length++
    :: else -> PROMISE(ONE_ORDER, order[own_length[r]] == t)
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
  if :: in_flight[AT(r, 0)] && MUTANT != 17 -> to_root!ANNOUNCE, 0, epoch :: else fi;
  if :: in_flight[AT(r, 1)] -> to_root!ANNOUNCE, 1, epoch :: else fi
}

/* Nobody asks any more what it did and had in mind: states that differ in this only are one. */
inline Forget(r) {
  has_answer[r] = 1;
  submitted[AT(r, 0)] = 0;
  submitted[AT(r, 1)] = 0;
  done[AT(r, 0)] = 0;
  done[AT(r, 1)] = 0;
  in_flight[AT(r, 0)] = 0;
  in_flight[AT(r, 1)] = 0;
  own_length[r] = 0;
  is_frozen = 0;
  has_voted = 0;
  has_told = 0;
  is_called = 0;
  is_over = 0;
  untold = 0;
  untold_value = 0;
  epoch = 0;
  length = 0;
  head = 0;
  q = 0;
  t = 0;
  do
  :: from_root?_, _
  :: empty(from_root) -> break
  od
}

/* Its engine ends in an error, told to the root or not. Others may have executed what its host was
   READY for, so it says nothing of that. */
inline End(r) {
  if
  :: is_frozen -> word_broken[r] = 1; leaves_open[r] = has_voted && has_told && MUTANT != 15
  :: else
  fi;
  has_left[r] = 1;
  Forget(r)
}

/* Who has ended reads nothing. */
inline TellRank(q, kind, tensor) {
  if
  :: !has_answer[q] -> stream[q]!kind, tensor
  :: else
  fi
}

/* What came in the stream goes on to the next rank, if there is one, some time later. */
inline PassOn(r, kind, value) {
  if
  :: CHAIN && r == 1 -> untold = kind; untold_value = value
  :: else
  fi
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

/* What q says to r of the bucket at head. Who has left and said nothing in this freeze says BREAK. */
#define READS_OUTCOME(r) (IS_SPREAD(NEXT) && !LEADS(r, NEXT) && MUTANT != 8)
#define HAS_LEFT_BEFORE(q) (has_left[q] && word_epoch[q] != epoch)
#define TAKEN_BACK(q) ((MUTANT == 12 && has_left[q]) || (MUTANT == 16 && is_dead[q]))
#define SAYS_READY(r, q) \
  ((word_epoch[q] == epoch && READY_OF(r, q) > head && !TAKEN_BACK(q)) || \
   (MUTANT == 11 && HAS_LEFT_BEFORE(q)))
#define SAYS_BREAK(r, q) \
  (!SAYS_READY(r, q) && \
   ((word_epoch[q] == epoch && word_broken[q] && !(READS_OUTCOME(r) && leaves_open[q])) || \
    (MUTANT != 10 && HAS_LEFT_BEFORE(q)) || TAKEN_BACK(q)))

/* The bucket at head is one that all its members are READY for. */
#define IS_READY(q, t) (!MEMBER(q, t) || (word_epoch[q] == epoch && word_ready[q] > head))
#define ALL_READY(t) (IS_READY(0, t) && IS_READY(1, t) && IS_READY(2, t))

/* Whom a rank cannot do without, once it has left: who passes it the stream, and who is to show it
   the outcome. Everybody hears of a death. */
#define PARENT(r) (CHAIN && (r) == 2 -> 1 : 0)
#define PARENT_LEFT(r) ((r) != 0 && has_left[PARENT(r)] && MUTANT != 13)
#define KEEPS_OUTCOME(r, q) \
  (LEADS(q, NEXT) && HERE(r, q) && leaves_open[q] && outcome_ready[q] <= head)
#define LEADER_LEFT(r) \
  (is_frozen && has_voted && READS_OUTCOME(r) && MUTANT != 14 && \
   (KEEPS_OUTCOME(r, 0) || KEEPS_OUTCOME(r, 1) || KEEPS_OUTCOME(r, 2)))
#define HAS_LOST(r) (SOMEBODY_DIED || PARENT_LEFT(r) || LEADER_LEFT(r))

proctype Rank(byte r; chan to_root; chan from_root) {
  bit is_frozen = 0;
  bit has_voted = 0; /* READY for the bucket at head. */
  bit has_told = 0;  /* And its host is READY for it, as the other one may know. */
  bit is_called = 0; /* The stream said THAW before head was decided. */
  bit is_over = 0;   /* The stream said that somebody has left. */
  byte epoch = 0;    /* Freezes applied. */
  byte length = 2;   /* Tensors of a step. */
  byte head = 0;     /* Buckets behind us since the freeze. */
  byte q = 0;        /* The next vote to read. */
  byte t;
  mtype untold = 0; /* The item of the stream that is to be passed on. */
  byte untold_value = 0;
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
      is_frozen && has_voted && q < N && LOOKS_AT(r, q) && SAYS_READY(r, q) -> q++
    }
  :: atomic {
      is_frozen && has_voted && q < N && LOOKS_AT(r, q) && SAYS_BREAK(r, q) ->
      /* By now nobody can say READY to everybody. */
      PROMISE(ONE_OUTCOME, HOW_NEXT(r, NEXT) != 1 + epoch);
      has_voted = 0;
      Thaw(r)
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
      PROMISE(ONE_OUTCOME, ALL_READY(t));
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
  :: atomic {
      crashes_left > 0 && MAY_DEVIATE(r) ->
      crashes_left--;
      is_dead[r] = 1;
      Forget(r);
      break
    }
  :: atomic {
      fails_left > 0 && MAY_DEVIATE(r) ->
      fails_left--;
      to_root!LEFT, 0, epoch;
      End(r);
      break
    }
  /* kPeerLost, which nobody else has to be told. */
  :: atomic { HAS_LOST(r) -> End(r); break }

  :: atomic { untold != 0 -> TellRank(2, untold, untold_value); untold = 0; untold_value = 0 }
  :: atomic {
      untold == 0 && from_root?[READY, _] ->
      from_root?READY, t;
      PassOn(r, READY, t);
      if
      :: MEMBER(r, t) -> PROMISE(ONE_ORDER, !is_frozen); Reduce(r, t, 1)
      :: else
      fi
    }
  :: atomic {
      untold == 0 && from_root?[FREEZE, _] ->
      from_root?FREEZE, length;
      PassOn(r, FREEZE, length);
      PROMISE(EPOCHS_APART, !is_frozen);
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
      untold == 0 && from_root?[THAW, _] ->
      from_root?THAW, _;
      PassOn(r, THAW, 0);
      if
      :: is_frozen && has_voted && MUTANT != 5 -> is_called = 1
      :: is_frozen && (!has_voted || MUTANT == 5) -> has_voted = 0; Thaw(r)
      :: else
      fi
    }
  :: atomic {
      untold == 0 && from_root?[DEPARTED, _] ->
      from_root?DEPARTED, _;
      PassOn(r, DEPARTED, 0);
      is_over = 1
    }
  /* Its callers are told, with no vote undecided. */
  :: atomic { is_over && !has_voted && untold == 0 -> Forget(r); break }
  od
}
